/* What the files of omni.native.guest share: one guest program, and the run whose tools it calls. */
#ifndef OMNI_LIB_GUEST_H
#define OMNI_LIB_GUEST_H

#include "core/future.h"
#include "vm/guest.h"
#include "vm/vm.h"

/* A tool as the guest sees it. */
typedef struct guest_tool {
  char *name;  /* "get" or "db.get" */
  uint32_t id; /* in the run's manifest */
} guest_tool;

/* A call that the pass prepares. Numbered from 1 in the rewritten text. */
typedef struct guest_site {
  uint32_t tool;   /* index in `tools` */
  uint32_t last;   /* the last site of its group */
  int line;        /* of the call */
  uint32_t handle; /* what is prepared for it; 0 = nothing */
} guest_site;

/*
 * Life: the handle in Lua has one reference, the event on its way to the owner's loop another. The thread is joined on
 * the owner's thread: when the event is delivered, or when the handle is released, whichever is first.
 */
typedef struct guest_program {
  atomic_uint refs;
  vm_guest *guest;
  omni_run *run; /* a reference; NULL = no tools */
  /* the owner's thread */
  vm_state *owner;
  omni_inbox *inbox; /* the owner's, a reference */
  omni_event done;
  vm_ticket waiter;
  bool ended; /* the thread is joined */
  /* set before the start, then the guest's thread only, until it has ended */
  guest_tool *tools;
  uint32_t tool_count;
  guest_site *sites; /* [0] is unused */
  uint32_t site_count;
  char **plans; /* of the prepare statements, from 1; [0] is unused */
  size_t *plan_lens;
  uint32_t plan_count;
  omni_blob *inputs;   /* JSON; NULL = none */
  uint32_t armed;      /* the site that R announced: the next tool call is it */
  omni_blob *response; /* of the call that is being delivered */
  omni_blob *results;  /* JSON array of what the program returned */
  uint32_t blame;      /* tool whose error was the last one raised; tool_count = none */
  char blame_code[32]; /* its code */
  bool blamed;         /* that error ended the program */
} guest_program;

/* What the guest's thread runs (guest_tools.c): globals, tools, results. */
extern const vm_guest_ops omni_guest_ops;
/* Posts the program's end to its owner (guest.c). */
void guest_program_ended(void *program);

/* Pushes the JSON array of the n values on top and pops these; where they have no JSON form it pushes why and returns
 * NULL. One reference (guest_values.c). */
omni_blob *guest_encode_values(lua_State *L, int n);
/* Pushes the values of an array "ok" of n, or the error's text; false for an error, with its code. */
bool guest_decode_response(lua_State *L, const omni_blob *response, int *n, char *code, size_t size);
/* Pushes a decoded value; raises for what is no JSON. */
void guest_decode(lua_State *L, const omni_blob *json);
/* Opens JSON in the guest; adds null and array to the environment on top. */
void guest_values_open(lua_State *L);

/* P and R of rewritten programs (guest_prepare.c): pushes both. */
void guest_push_prepare(lua_State *L);
/* Takes the armed site over for a call of this tool: the handle to resolve, 0 for an ordinary call. */
uint32_t guest_claim(guest_program *p, uint32_t tool, uint32_t *site);
/* An error was delivered at this site: what its group has prepared behind it can never be claimed. */
void guest_drop_later(guest_program *p, uint32_t site);
/* Pushes the run's own function for a tool. */
void guest_push_tool(lua_State *L, uint32_t tool);

#endif
