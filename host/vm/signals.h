/*
 * SIGINT and SIGTERM of the main process, counted by a thread: the first drains, the second aborts and gives the
 * process a second to unwind, the third has its default effect.
 */
#ifndef OMNI_VM_SIGNALS_H
#define OMNI_VM_SIGNALS_H

#include "vm/vm.h"

/* Before any thread: the inherited mask is emptied and SIGPIPE has no effect here; children get both defaults. */
void vm_signals_prepare(void);

/* Starts the thread; signals are delivered to this state. Without a handler the first one ends the run with
 * 128 + signal. */
bool vm_signals_start(vm_state *S);

/* Keeps the function on top of L's stack (popped) as the handler: fn(name, count); nil removes it. */
void vm_signals_handler(lua_State *L);

/* Ends the thread; before the state is closed. */
void vm_signals_stop(void);

#endif
