/* Inside of a state: shared by the files of vm only. */
#ifndef OMNI_VM_STATE_H
#define OMNI_VM_STATE_H

#include "core/sys.h"
#include "vm/vm.h"

#define VM_NAME_MAX 64
#define VM_TASKS_MAX 0xffffe /* a ticket keeps 20 bits for the slot */

/*
 * A task is a coroutine that the host resumes. Slots are reused; `gen` counts suspensions over all lives of a slot, so
 * a ticket (gen, index) names one suspension and never another.
 */
typedef struct vm_task {
  lua_State *co; /* NULL while the slot is free */
  int ref;       /* keeps co alive */
  uint32_t index, gen;
  bool parked;     /* suspended, waiting for its ticket or its timer */
  bool timed;      /* the timer runs */
  bool timer_made; /* the timer is a handle of the loop */
  bool hopes;      /* vm_state.hopes[index] holds its hope */
  int nargs;       /* values on co's stack for the next resume */
  uv_timer_t timer;
  const char *what;      /* what it waits for */
  lua_State *at;         /* the coroutine that called, for the report of those that wait for ever */
  const char *raise;     /* malloc'd: the next resume raises this */
  struct vm_task *ready; /* next in the ready queue */
} vm_task;

struct vm_state {
  lua_State *L;
  uv_loop_t loop;
  omni_inbox *inbox;
  char name[VM_NAME_MAX];
  int code;       /* exit code so far */
  bool exiting;   /* the run ends */
  bool closing;   /* callbacks are dropped from now on */
  bool main_done; /* the main task has ended */
  vm_task **tasks;
  size_t task_room, task_count; /* slots made, slots in use */
  vm_task *current;             /* running task, NULL in callbacks */
  vm_task *main;                /* NULL before start and after its end */
  vm_task *ready, *ready_tail;
  vm_task *free;    /* unused slots, linked by `ready` */
  lua_State *spare; /* a coroutine that has returned, for the next task; NULL = none */
  int spare_ref;
  unsigned depth;            /* nesting of vm_callback */
  uv_idle_t more;            /* active while tasks are ready: keeps the loop from sleeping */
  int hopes;                 /* registry reference of the table of hopes */
  int guard;                 /* registry reference of boot's function that runs a task's under xpcall */
  int on_error;              /* registry reference of the test run's error taker, or LUA_NOREF */
  struct vm_child *children; /* threads started by this state (thread.c) */
};

/* next.c: next and pairs that cannot be miscompiled; after the libraries, before any Lua */
void vm_next_open(lua_State *L);

/* tasks.c */
void vm_tasks_open(vm_state *S);                /* handles of the scheduler */
void vm_tasks_close(vm_state *S);               /* closes them; before the loop runs dry */
void vm_tasks_free(vm_state *S);                /* after the loop's end */
void vm_tasks_run_ready(vm_state *S);           /* one batch; asks for more turns if some are left */
vm_task *vm_task_spawn(vm_state *S, int nargs); /* function and n arguments on top of the main stack; NULL: no memory */
bool vm_tasks_hope(vm_state *S);                /* somebody outside can still wake one of them */
int vm_tasks_report_stuck(vm_state *S);         /* prints the tasks that wait for ever; returns how many */
bool vm_task_raise(vm_state *S, vm_task *task, const char *text); /* a parked task gets an error where it waits */
/* The same for a task that is parked or about to be resumed: it gets the error where it waits or waited. Not from a
 * task. */
bool vm_task_interrupt(vm_state *S, vm_task *task, const char *text);

void *vm_sentinel(void); /* what a suspending task yields */

int vm_task_failed(lua_State *L);
/* Runs the function and n arguments on top of L as a task of its own, at once, until it ends or first suspends: pushes
 * true if it has ended. It must not raise. */
int vm_task_run(lua_State *L, int nargs);

/* builtin.c */
void vm_builtin_open(lua_State *L); /* searchers, package.path, the coroutine library, preloads */

/* Puts vm_conf.script_dir before package.path: modules are found beside the script, then in its lua/ folder, then where
 * LuaJIT looks (LUA_PATH). */
void vm_builtin_path(lua_State *L);

/* child.c */
bool vm_children_alive(vm_state *S);
void vm_children_stop(vm_state *S);    /* asks them to stop and joins them; past a second gives up the process */
void vm_children_collect(vm_state *S); /* forgets threads that ended and whose result was seen */
int vm_children_unseen(vm_state *S);   /* reports failures that nobody joined; returns the exit code */

#endif
