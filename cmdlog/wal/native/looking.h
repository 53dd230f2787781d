/* Waiting without sleeping, of one of two sides that take turns by a word of memory. */

#ifndef CMDLOG_LOOKING_H
#define CMDLOG_LOOKING_H

#include <stdatomic.h>
#include <stdint.h>

#define STOLEN_NS 1000000LL /* these four as in cmdlog.node.sites.busy_poll */
#define REST_MIN_NS 1000000LL
#define REST_MAX_NS 1000000000LL
#define CALM_RESTS 10

typedef struct {
    long long limit_ns, rests_until, rest_ns;
} Looking;

long long now_ns(void); /* CLOCK_MONOTONIC */

/* Looks whether it is this side's turn, while others let it: the processor is offered to them after each look. */
void look(Looking *own, _Atomic uint32_t *order, int (*is_others)(uint32_t));

#endif
