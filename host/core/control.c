#include "core/control.h"

#include "core/sys.h"

#include <stdlib.h>
#include <string.h>

#define READ_SIZE ((size_t)64 << 10)

static const struct timespec GRACE = {1, 0};

struct omni_control {
  omni_thread thread;
  int fd, stop; /* the socket; an eventfd that ends the thread */
  omni_sink *sink;
  uint32_t tag;
  char *data; /* what was read and not handed on */
  size_t len, room;
};

static bool make_room(omni_control *c) {
  if (c->room - c->len >= READ_SIZE) return true;
  size_t room = c->room + c->room / 2 + READ_SIZE;
  char *data = room <= OMNI_CONTROL_LINE_MAX + 2 * READ_SIZE ? realloc(c->data, room) : NULL;
  if (data == NULL) return false;
  c->data = data;
  c->room = room;
  return true;
}

/* Hands on the whole lines of the buffer. */
static void hand_on(omni_control *c, size_t seen) {
  size_t start = 0;
  for (char *nl; (nl = memchr(c->data + seen, '\n', c->len - seen)) != NULL; seen = start) {
    size_t end = (size_t)(nl - c->data);
    (void)omni_sink_put(c->sink, c->tag, c->data + start, end - start);
    start = end + 1;
  }
  memmove(c->data, c->data + start, c->len - start);
  c->len -= start;
}

/* False at the end of the stream. */
static bool read_some(omni_control *c) {
  if (!make_room(c)) return false;
  ssize_t n = omni_sys_read(c->fd, c->data + c->len, READ_SIZE);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  size_t seen = c->len;
  c->len += (size_t)n;
  hand_on(c, seen);
  return true;
}

static void *control_main(void *arg) {
  omni_control *c = arg;
  struct pollfd fds[2] = {{c->stop, POLLIN, 0}, {c->fd, POLLIN, 0}};
  for (;;) {
    if (omni_sys_ppoll(fds, 2, NULL) < 0) continue;
    if (fds[0].revents != 0) return NULL;
    if (fds[1].revents != 0 && !read_some(c)) break;
  }
  omni_sink_close(c->sink);
  int ready;
  do
    ready = omni_sys_ppoll(fds, 1, &GRACE);
  while (ready < 0);
  if (ready == 0) {
    /* The host is gone and Lua has not unwound: nothing of this group may outlive it. */
    omni_sys_kill(0, SIGKILL);
    _exit(137);
  }
  return NULL;
}

omni_control *omni_control_start(int fd, omni_sink *sink, uint32_t tag) {
  omni_control *c = calloc(1, sizeof *c);
  if (c == NULL) return NULL;
  c->fd = fd;
  c->tag = tag;
  c->stop = omni_sys_eventfd();
  c->sink = omni_sink_ref(sink);
  if (c->stop < 0 || omni_thread_start(&c->thread, "control", control_main, c) != 0) {
    if (c->stop >= 0) omni_sys_close(c->stop);
    omni_sink_unref(sink);
    free(c);
    return NULL;
  }
  return c;
}

void omni_control_stop(omni_control *c) {
  uint64_t one = 1;
  if (omni_sys_write(c->stop, &one, sizeof one) == (ssize_t)sizeof one) omni_thread_join(c->thread);
  omni_sys_close(c->stop);
  omni_sink_unref(c->sink);
  free(c->data);
  free(c);
}
