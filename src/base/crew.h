/* Items shared out to threads that exist for them alone: for what runs before there is a pool. */
#ifndef NYB_BASE_CREW_H
#define NYB_BASE_CREW_H

#define CREW_MOST 16 /* threads beside the caller */

/* do_item(arg, 0 .. n_item - 1), each once and in no order, by the caller and at most n_thread threads beside
 * it; where there are no threads to be had, by fewer. */
void crew_run(int n_item, int n_thread, void (*do_item)(void *arg, int item), void *arg);

#endif
