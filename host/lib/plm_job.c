/* Jobs as Lua sees them, on a worker or at home. */
#include "lib/plm.h"

#include <stdlib.h>

static const vm_class job_class;

static omni_job *check_job(lua_State *L) { return vm_object_check(L, 1, &job_class); }

static bool at_home(const omni_job *job) { return omni_pool_tool(omni_job_pool(job), omni_job_tool(job))->home; }

/* A job that its handle leaves unfinished: the task that ran it is gone. Workers answer for theirs when they end. */
static void release_job(vm_handle *handle) {
  omni_job *job = handle->object;
  omni_job_set_user(job, NULL);
  free(handle->extra);
  handle->extra = NULL;
  if (at_home(job)) omni_home_finish(omni_job_ref(job), omni_error_response("EWORKER", "the tool's script ended"));
}

plm_exec *plm_job_push(lua_State *L, omni_job *job) {
  plm_exec *exec = calloc(1, sizeof *exec);
  if (exec == NULL) return NULL;
  vm_handle *handle = vm_handle_push(L, &job_class, job);
  exec->S = vm_of(L);
  handle->extra = exec;
  handle->release = release_job;
  omni_job_set_user(job, exec);
  return exec;
}

void plm_job_interrupt(const omni_job *job) {
  static const char *const texts[] = {[OMNI_CANCEL_RUN] = "ECANCELED: nobody waits for this call any more",
                                      [OMNI_CANCEL_STALE] = "ECANCELED: a write came before this read was claimed",
                                      [OMNI_CANCEL_MISS] = "ECANCELED: another request was made instead",
                                      [OMNI_CANCEL_PREEMPT] = "ECANCELED: the worker is needed for an ordinary call",
                                      [OMNI_CANCEL_TIMEOUT] = "ETIMEDOUT: the tool's time is over"};
  plm_exec *exec = omni_job_user(job);
  omni_cancel why = omni_job_cancelled(job);
  if (exec == NULL || exec->task == NULL || exec->told || why == OMNI_CANCEL_NONE) return;
  exec->told = true;
  vm_task_interrupt(exec->S, exec->task, texts[why]);
}

/* _begin(): the running task runs the tool from now on. False where it is cancelled already. */
static int job_begin(lua_State *L) {
  omni_job *job = check_job(L);
  plm_exec *exec = omni_job_user(job);
  exec->task = exec->S->current;
  lua_pushboolean(L, omni_job_cancelled(job) == OMNI_CANCEL_NONE);
  return 1;
}

/* _finish(response text): the tool has ended. */
static int job_finish(lua_State *L) {
  vm_handle *handle = vm_handle_check(L, 1, &job_class);
  omni_job *job = check_job(L);
  size_t len;
  const char *text = luaL_checklstring(L, 2, &len);
  omni_blob *response = omni_blob_new(text, len);
  handle->release = NULL;
  omni_job_set_user(job, NULL);
  free(handle->extra);
  handle->extra = NULL;
  if (at_home(job))
    omni_home_finish(omni_job_ref(job), response);
  else
    plm_worker_finish(response);
  vm_handle_release(handle);
  return 0;
}

static int job_tool(lua_State *L) {
  lua_pushstring(L, omni_job_name(check_job(L)));
  return 1;
}

/* _pool() -> light userdata that stands for the manifest. */
static int job_pool(lua_State *L) {
  lua_pushlightuserdata(L, omni_job_pool(check_job(L)));
  return 1;
}

static int job_args(lua_State *L) {
  const omni_blob *args = omni_job_args(check_job(L));
  lua_pushlstring(L, (const char *)args->data, args->len);
  return 1;
}

static int job_cancelled(lua_State *L) {
  lua_pushboolean(L, omni_job_cancelled(check_job(L)) != OMNI_CANCEL_NONE);
  return 1;
}

/* _deadline() -> seconds on omni.now's clock, or nil. */
static int job_deadline(lua_State *L) {
  uint64_t deadline = omni_job_deadline(check_job(L));
  if (deadline == 0) return 0;
  lua_pushnumber(L, (lua_Number)deadline / 1e9);
  return 1;
}

static void unref_job(void *job) { omni_job_unref(job); }

static const luaL_Reg job_methods[] = {
    {"_begin", job_begin}, {"_finish", job_finish},       {"_tool", job_tool},         {"_pool", job_pool},
    {"_args", job_args},   {"_cancelled", job_cancelled}, {"_deadline", job_deadline}, {NULL, NULL}};

static const vm_class job_class = {"omni.plm.job", NULL, unref_job, job_methods};

void plm_job_functions(lua_State *L) {
  vm_class_push(L, &job_class);
  lua_getfield(L, -1, "__index");
  lua_setfield(L, -3, "job_methods");
  lua_pop(L, 1);
}
