#include "core/buf.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void omni_buf_free(omni_buf *buf) {
  free(buf->data);
  *buf = (omni_buf){0};
}

/* Room for len bytes more; false and `failed` when there is none. */
static bool reserve(omni_buf *buf, size_t len) {
  if (buf->cap - buf->len >= len) return true;
  if (buf->failed || len > SIZE_MAX / 4 || buf->cap > SIZE_MAX / 4) goto fail;
  size_t cap = buf->cap < 128 ? 256 : buf->cap * 2;
  if (cap < buf->len + len) cap = buf->len + len;
  char *data = realloc(buf->data, cap);
  if (data == NULL) goto fail;
  buf->data = data;
  buf->cap = cap;
  return true;
fail:
  buf->failed = true;
  return false;
}

void omni_buf_put(omni_buf *buf, const char *data, size_t len) {
  if (len == 0 || !reserve(buf, len)) return;
  memcpy(buf->data + buf->len, data, len);
  buf->len += len;
}

void omni_buf_puts(omni_buf *buf, const char *text) { omni_buf_put(buf, text, strlen(text)); }

void omni_buf_putc(omni_buf *buf, char c) {
  if (reserve(buf, 1)) buf->data[buf->len++] = c;
}

static void put_escape(omni_buf *buf, unsigned char c) {
  static const char hex[] = "0123456789abcdef";
  static const char names[32] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
  char text[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
  if (c >= 32 || names[c] != 0) {
    text[1] = c >= 32 ? (char)c : names[c];
    omni_buf_put(buf, text, 2);
  } else {
    omni_buf_put(buf, text, 6);
  }
}

/* Valid UTF-8: stretches without a character to escape are copied as a whole. */
static void put_valid(omni_buf *buf, const char *text, size_t len) {
  size_t from = 0;
  for (size_t i = 0; i < len; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c >= 32 && c != '"' && c != '\\') continue;
    omni_buf_put(buf, text + from, i - from);
    put_escape(buf, c);
    from = i + 1;
  }
  omni_buf_put(buf, text + from, len - from);
}

void omni_buf_json(omni_buf *buf, const char *text, size_t len) {
  omni_buf_putc(buf, '"');
  while (len > 0) {
    size_t valid = omni_utf8_valid(text, len);
    put_valid(buf, text, valid);
    if (valid == len) break;
    omni_buf_puts(buf, "\xef\xbf\xbd");
    text += valid + 1;
    len -= valid + 1;
  }
  omni_buf_putc(buf, '"');
}

/* The length of the sequence that starts with this byte, and the least and greatest second byte (RFC 3629, the table of
 * section 4): these bounds alone rule out overlong forms, surrogates and what lies beyond U+10FFFF. */
static int lead(unsigned char c, unsigned char *low, unsigned char *high) {
  *low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
  *high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
  if (c < 0xc2) return 0;
  if (c < 0xe0) return 2;
  if (c < 0xf0) return 3;
  return c <= 0xf4 ? 4 : 0;
}

size_t omni_utf8_valid(const char *text, size_t len) {
  const unsigned char *p = (const unsigned char *)text;
  size_t i = 0;
  while (i < len) {
    if (p[i] < 0x80) {
      i++;
      continue;
    }
    unsigned char low, high;
    size_t size = (size_t)lead(p[i], &low, &high);
    if (size == 0 || len - i < size || p[i + 1] < low || p[i + 1] > high) return i;
    for (size_t k = 2; k < size; k++)
      if (p[i + k] < 0x80 || p[i + k] > 0xbf) return i;
    i += size;
  }
  return i;
}
