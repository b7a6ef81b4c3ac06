#include "core/log.h"
#include "core/buf.h"
#include "core/sys.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CAPTURE_LIMIT ((size_t)1 << 20)
#define STDERR 2

static const char *const names[OMNI_LOG_LEVELS] = {
#define X(level, name) [OMNI_LOG_##level] = name,
    OMNI_LOG_MAP(X)
#undef X
};
static const char *const colours[OMNI_LOG_LEVELS] = {"\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[31m", ""};

static atomic_int threshold = OMNI_LOG_INFO;
static bool terminal, coloured; /* of stderr; set once */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Lines kept for a test. The mutex is a leaf: under it only memory is moved. */
static struct {
  omni_mutex mutex;
  atomic_bool on; /* read without the mutex to choose the form of a line */
  omni_buf lines;
} capture = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void open_log(void) {
  terminal = omni_sys_isatty(STDERR);
  const char *no_colour = getenv("NO_COLOR"), *name = getenv("OMNIHOST_LOG");
  coloured = terminal && (no_colour == NULL || *no_colour == '\0');
  int level = name != NULL ? omni_log_level_of(name) : -1;
  if (level >= 0) atomic_store_explicit(&threshold, level, memory_order_relaxed);
}

const char *omni_log_level_name(int level) {
  return level >= 0 && level < OMNI_LOG_LEVELS ? names[level] : names[OMNI_LOG_OFF];
}

int omni_log_level_of(const char *name) {
  for (int i = 0; i < OMNI_LOG_LEVELS; i++)
    if (strcmp(name, names[i]) == 0) return i;
  return -1;
}

int omni_log_level_get(void) {
  pthread_once(&once, open_log);
  return atomic_load_explicit(&threshold, memory_order_relaxed);
}

void omni_log_level_set(int level) {
  pthread_once(&once, open_log);
  atomic_store_explicit(&threshold, level, memory_order_relaxed);
}

/* 2024-05-06T07:08:09.123Z; the day of the epoch where the clock is out of all bounds. */
static void put_time(omni_buf *buf, bool whole) {
  uint64_t now = omni_sys_wall();
  time_t seconds = (time_t)(now / 1000000000u);
  struct tm tm = {0};
  gmtime_r(&seconds, &tm);
  char text[64], millis[16];
  size_t len = strftime(text, sizeof text, whole ? "%Y-%m-%dT%H:%M:%S" : "%H:%M:%S", &tm);
  omni_buf_put(buf, text, len);
  snprintf(millis, sizeof millis, ".%03uZ", (unsigned)(now / 1000000u % 1000u));
  omni_buf_puts(buf, millis);
}

static void put_json_line(omni_buf *buf, int level, const char *msg, size_t len, const omni_log_field *fields,
                          size_t n) {
  omni_buf_puts(buf, "{\"ts\":\"");
  put_time(buf, true);
  omni_buf_puts(buf, "\",\"level\":\"");
  omni_buf_puts(buf, names[level]);
  omni_buf_puts(buf, "\",\"msg\":");
  omni_buf_json(buf, msg, len);
  for (size_t i = 0; i < n; i++) {
    omni_buf_putc(buf, ',');
    omni_buf_json(buf, fields[i].key, strlen(fields[i].key));
    omni_buf_putc(buf, ':');
    omni_buf_puts(buf, fields[i].json);
  }
  omni_buf_puts(buf, "}\n");
}

/* A JSON string that reads the same without its quotes loses them. */
static void put_value(omni_buf *buf, const char *json) {
  size_t len = strlen(json);
  bool plain = len > 2 && json[0] == '"' && strcspn(json + 1, " \"\\=") == len - 2;
  omni_buf_put(buf, json + plain, plain ? len - 2 : len);
}

/* Control characters in a text must not move the cursor. */
static void put_line(omni_buf *buf, const char *text, size_t len) {
  for (size_t i = 0; i < len; i++)
    omni_buf_putc(buf, (unsigned char)text[i] < 32 || text[i] == 127 ? ' ' : text[i]);
}

static void put_text_line(omni_buf *buf, int level, const char *msg, size_t len, const omni_log_field *fields,
                          size_t n) {
  put_time(buf, false);
  omni_buf_putc(buf, ' ');
  if (coloured) omni_buf_puts(buf, colours[level]);
  char name[16];
  snprintf(name, sizeof name, "%-5s", names[level]);
  omni_buf_puts(buf, name);
  if (coloured) omni_buf_puts(buf, "\x1b[0m");
  omni_buf_putc(buf, ' ');
  put_line(buf, msg, len);
  for (size_t i = 0; i < n; i++) {
    omni_buf_putc(buf, ' ');
    put_line(buf, fields[i].key, strlen(fields[i].key));
    omni_buf_putc(buf, '=');
    put_value(buf, fields[i].json);
  }
  omni_buf_putc(buf, '\n');
}

/* False where no test keeps lines. */
static bool keep(const omni_buf *line) {
  omni_mutex_lock(&capture.mutex);
  bool on = atomic_load_explicit(&capture.on, memory_order_relaxed);
  if (on && line->len <= CAPTURE_LIMIT - capture.lines.len) omni_buf_put(&capture.lines, line->data, line->len);
  omni_mutex_unlock(&capture.mutex);
  return on;
}

void omni_log_write(int level, const char *msg, size_t len, const omni_log_field *fields, size_t n) {
  if (level < 0 || level >= OMNI_LOG_OFF || level < omni_log_level_get()) return;
  int saved = errno; /* the log is called on error paths, where errno still counts */
  omni_buf line = {0};
  bool kept = atomic_load_explicit(&capture.on, memory_order_relaxed);
  (terminal && !kept ? put_text_line : put_json_line)(&line, level, msg, len, fields, n);
  if (!line.failed && !(kept && keep(&line))) (void)!omni_sys_write(STDERR, line.data, line.len);
  omni_buf_free(&line);
  errno = saved;
}

void omni_log(int level, const char *fmt, ...) {
  if (level < omni_log_level_get()) return;
  char text[1024];
  va_list args;
  va_start(args, fmt);
  int len = vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (len < 0) return;
  omni_log_write(level, text, (size_t)len < sizeof text ? (size_t)len : sizeof text - 1, NULL, 0);
}

void omni_log_capture(bool on) {
  omni_mutex_lock(&capture.mutex);
  atomic_store_explicit(&capture.on, on, memory_order_relaxed);
  omni_buf_free(&capture.lines);
  omni_mutex_unlock(&capture.mutex);
}

char *omni_log_take(size_t *len) {
  omni_mutex_lock(&capture.mutex);
  char *lines = capture.lines.data;
  *len = capture.lines.len;
  capture.lines = (omni_buf){0};
  omni_mutex_unlock(&capture.mutex);
  return lines;
}
