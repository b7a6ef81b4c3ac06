/* What the bindings of tools, runs and guests share. */
#ifndef OMNI_LIB_PLM_H
#define OMNI_LIB_PLM_H

#include "core/future.h"
#include "vm/state.h"

/* The pool of a manifest's `_native`, the run of a run's `_native`; raise argument errors. */
omni_pool *omni_plm_pool_check(lua_State *L, int idx);
omni_run *omni_plm_run_check(lua_State *L, int idx);

/* One tool at work: a job in Lua's hands. */
typedef struct plm_exec {
  vm_state *S;
  vm_task *task; /* that runs the tool, NULL before it begins */
  bool told;     /* it got its cancel: once is enough, for it may have things to put away */
} plm_exec;

/* Pushes the handle of a job that has started; takes over a reference. */
plm_exec *plm_job_push(lua_State *L, omni_job *job);
/* The tool's task, if one runs, gets the error where it waits. */
void plm_job_interrupt(const omni_job *job);

/* Adds the functions of a worker's state to the module on top of the stack. */
void plm_worker_functions(lua_State *L);
/* omni_pool_ops.worker_main: a state of its own that runs omni.plm.worker. */
void plm_worker_main(omni_worker *worker);
/* The present thread's worker has no job any more. */
void plm_worker_finish(omni_blob *response);

/* Adds the functions and classes of jobs to the module on top of the stack. */
void plm_job_functions(lua_State *L);

#endif
