#include "places.h"

#include <stdlib.h>

void place_bind(Places *own)
{
    if (!own->bound) {
        own->count = 0;
        if (sched_getaffinity(0, sizeof own->free, &own->free) == 0 && CPU_COUNT(&own->free) <= PLACES_MAX) {
            for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
                if (CPU_ISSET(cpu, &own->free)) {
                    own->cpus[own->count++] = cpu;
                }
            }
        }
        own->at = own->at < own->count ? own->at : 0;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    if (own->count >= 2) {
        CPU_SET(own->cpus[own->at], &one);
        if (sched_setaffinity(0, sizeof one, &one) == 0) {
            own->bound = 1;
        } else {
            place_leave(own); /* it is not to stay on the one before: this one was taken from the process, say */
        }
    }
}

void place_leave(Places *own)
{
    if (own->bound) {
        sched_setaffinity(0, sizeof own->free, &own->free);
        own->bound = 0;
    }
}

static int compare_ns(const void *one, const void *other)
{
    long long a = *(const long long *)one, b = *(const long long *)other;
    return (a > b) - (a < b);
}

int place_note(Places *own, long long ns)
{
    if (own->stays > 0) {
        if (--own->stays > 0) {
            return 0;
        }
        own->at = 0;
        return 1;
    }
    own->samples[own->tried++] = ns;
    if (own->tried < TRIES) {
        return 0;
    }
    qsort(own->samples, TRIES, sizeof own->samples[0], compare_ns);
    own->medians[own->at++] = own->samples[TRIES / 2];
    own->tried = 0;
    if (own->at >= own->count) {
        own->at = 0;
        for (int other = 1; other < own->count; other++) {
            own->at = own->medians[other] < own->medians[own->at] ? other : own->at;
        }
        own->stays = STAYS * own->count;
    }
    return 1;
}
