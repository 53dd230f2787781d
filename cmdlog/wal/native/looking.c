#include "looking.h"

#include <sched.h>
#include <time.h>

long long now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

void look(Looking *own, _Atomic uint32_t *order, int (*is_others)(uint32_t))
{
    long long began = now_ns(), before = began;
    if (own->limit_ns <= 0 || began < own->rests_until) {
        return;
    }
    while (is_others(atomic_load(order)) && before < began + own->limit_ns) {
        sched_yield();
        long long after = now_ns();
        if (after - before > STOLEN_NS) {
            int calm = before - own->rests_until > CALM_RESTS * own->rest_ns;
            own->rest_ns = calm ? REST_MIN_NS : 2 * own->rest_ns < REST_MAX_NS ? 2 * own->rest_ns : REST_MAX_NS;
            own->rests_until = after + own->rest_ns;
            return;
        }
        before = after;
    }
}
