/* A growable buffer of text, and JSON strings in it. Failure is remembered, so that callers check once, at the end. */
#ifndef OMNI_CORE_BUF_H
#define OMNI_CORE_BUF_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed = empty. */
typedef struct omni_buf {
  char *data; /* not NUL-terminated */
  size_t len, cap;
  bool failed; /* memory was short: the text is not whole */
} omni_buf;

/* Frees the memory; the buffer is empty again. */
void omni_buf_free(omni_buf *buf);

/* Appends bytes, a NUL-terminated text, one byte. */
void omni_buf_put(omni_buf *buf, const char *data, size_t len);
void omni_buf_puts(omni_buf *buf, const char *text);
void omni_buf_putc(omni_buf *buf, char c);

/* Appends text as a JSON string with its quotes: control characters, quotes and backslashes escaped, the rest as it is,
 * bytes that are not UTF-8 as U+FFFD. */
void omni_buf_json(omni_buf *buf, const char *text, size_t len);

/* How many bytes from the start are whole, valid UTF-8 (no surrogates, no overlong forms): len if all are. */
size_t omni_utf8_valid(const char *text, size_t len);

#endif
