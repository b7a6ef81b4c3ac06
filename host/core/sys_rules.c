/* Rules as text, for child processes: OMNI_SYS_RULES in their environment. */
#include "core/sys_hooks.h"

#ifdef OMNI_SYS_HOOKS

#include <stdlib.h>
#include <string.h>

/* The fields of one rule, in their order. */
enum { OP, MATCH, SKIP, TIMES, ACTION, ERRNO, WHEN, FIELDS };

omni_sys_op omni_sys_op_named(const char *name) {
  static const char *const names[] = {
#define X(op) #op,
      OMNI_SYS_MAP(X)
#undef X
  };
  for (int op = 0; op < OMNI_SYS_OP_MAX; op++)
    if (strcmp(names[op], name) == 0) return (omni_sys_op)op;
  return OMNI_SYS_OP_MAX;
}

int omni_sys_errno_named(const char *name) {
  for (int code = 1; code < 256; code++) {
    const char *known = strerrorname_np(code);
    if (known != NULL && strcmp(known, name) == 0) return code;
  }
  return 0;
}

static bool parse_count(const char *text, uint64_t empty, uint64_t *out) {
  char *end = NULL;
  *out = empty;
  if (*text == '\0') return true;
  if (strcmp(text, "inf") == 0) {
    *out = UINT64_MAX;
    return true;
  }
  *out = strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == '\0';
}

static bool parse_action(const char *text, omni_sys_action *out) {
  *out = OMNI_SYS_FAIL;
  if (strcmp(text, "hold") == 0)
    *out = OMNI_SYS_HOLD;
  else if (strcmp(text, "kill") == 0)
    *out = OMNI_SYS_DIE;
  else
    return *text == '\0' || strcmp(text, "fail") == 0;
  return true;
}

static bool parse_rule(char *text) {
  const char *field[FIELDS] = {0};
  for (int i = 0; i < FIELDS; i++) {
    const char *next = strsep(&text, ",");
    field[i] = next != NULL ? next : "";
  }
  omni_sys_rule_opts opts = {.op = omni_sys_op_named(field[OP]), .match = *field[MATCH] ? field[MATCH] : NULL};
  opts.errnum = *field[ERRNO] ? omni_sys_errno_named(field[ERRNO]) : EIO;
  opts.after = strcmp(field[WHEN], "after") == 0;
  if (text != NULL || (!opts.after && *field[WHEN] && strcmp(field[WHEN], "before") != 0)) return false;
  if (!parse_count(field[SKIP], 0, &opts.skip) || !parse_count(field[TIMES], 1, &opts.times)) return false;
  if (!parse_action(field[ACTION], &opts.action)) return false;
  omni_sys_rule *rule = omni_sys_rule_add(&opts);
  omni_sys_rule_unref(rule); /* the list keeps it */
  return rule != NULL;
}

omni_err omni_sys_rules_parse(const char *text) {
  char *copy = strdup(text), *rest = copy, *one;
  if (copy == NULL) return OMNI_ENOMEM;
  bool good = true;
  while (good && (one = strsep(&rest, ";")) != NULL)
    if (*one != '\0') good = parse_rule(one);
  free(copy);
  return good ? OMNI_OK : OMNI_EINVAL;
}

#endif
