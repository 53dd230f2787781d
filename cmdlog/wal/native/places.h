/* Where a thread that makes one write after the other runs.
 *
 * It matters: the device's interrupts, and the kernel's work at the end of a write, have a processor of their own on many machines. A
 * write is shorter there, and a caller elsewhere is not disturbed. So the thread tries its processors and stays on the best one.
 */

#ifndef CMDLOG_PLACES_H
#define CMDLOG_PLACES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* cpu_set_t */
#endif
#include <sched.h>

#define PLACES_MAX 16
#define TRIES 32           /* writes that a processor is judged by */
#define STAYS (32 * TRIES) /* writes on the best, for each processor that was tried */

/* Of one thread, which alone uses it. With fewer than two processors, or more than PLACES_MAX, it runs where it likes. */
typedef struct {
    cpu_set_t free; /* where it could run before it was bound to one of them */
    int bound, count, at, tried, stays;
    int cpus[PLACES_MAX];
    long long medians[PLACES_MAX], samples[TRIES]; /* ns a write takes */
} Places;

void place_bind(Places *own); /* to the processor whose turn it is; where it cannot be bound, it is not */
void place_leave(Places *own);
int place_note(Places *own, long long ns); /* a write took so long: whether the next one is to be elsewhere */

#endif
