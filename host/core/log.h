/*
 * The log of the process: one line per message, one write per line, to stderr. `key=value` pairs where stderr is a
 * terminal, JSON lines otherwise. Nothing here fails or raises: what cannot be written is dropped.
 */
#ifndef OMNI_CORE_LOG_H
#define OMNI_CORE_LOG_H

#include <stdbool.h>
#include <stddef.h>

/* Level, name. OFF is no message's level: it silences all of them. */
#define OMNI_LOG_MAP(X)                                                                                                \
  X(DEBUG, "debug")                                                                                                    \
  X(INFO, "info")                                                                                                      \
  X(WARN, "warn")                                                                                                      \
  X(ERROR, "error")                                                                                                    \
  X(OFF, "off")

typedef enum omni_log_level {
#define X(level, name) OMNI_LOG_##level,
  OMNI_LOG_MAP(X)
#undef X
      OMNI_LOG_LEVELS
} omni_log_level;

/* What a message says beside its text. */
typedef struct omni_log_field {
  const char *key;  /* NUL-terminated */
  const char *json; /* its value as JSON text */
} omni_log_field;

/* "warn"; "off" for what is no level. */
const char *omni_log_level_name(int level);
/* The level of a name, or -1. */
int omni_log_level_of(const char *name);

/* The lowest level that is written: process-wide, at first that of OMNIHOST_LOG, else info. */
int omni_log_level_get(void);
void omni_log_level_set(int level);

/* Writes a message if its level is wanted. Any thread; the message is cut at 1 KiB. */
void omni_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The same with a text of any length and with fields, in their order. */
void omni_log_write(int level, const char *msg, size_t len, const omni_log_field *fields, size_t n);

/* For tests: from now on all lines of the process are kept, as JSON, instead of written; false ends that and drops what
 * was not taken. At most 1 MiB is kept. */
void omni_log_capture(bool on);

/* Takes the lines that were kept so far: a malloc'd block of whole lines and its length, NULL where there are none. */
char *omni_log_take(size_t *len);

#endif
