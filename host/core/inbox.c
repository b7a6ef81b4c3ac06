#include "core/inbox.h"

#include "core/sys.h"

#include <assert.h>
#include <stdlib.h>

struct omni_inbox {
  atomic_uint refs; /* the consumer's, each poster's, and one of the bell's handle until it is closed */
  int fd;           /* an eventfd: what rings the bell. uv_async_t would do, but where poster and loop share a CPU its
                       handshake makes the woken spin until the poster runs again */
  uv_poll_t bell;
  omni_mutex mutex;           /* protects what follows; never held while a callback runs */
  omni_cond quiet;            /* signalled when ringing falls to 0 on a closed inbox */
  omni_event *head, *tail;    /* queued, oldest first */
  atomic_bool rung;           /* a doorbell is on its way for what is queued; written under the mutex */
  atomic_bool closed;         /* no post and no ring from now on; written under the mutex */
  atomic_uint ringing;        /* posters that write to fd; raised under the mutex */
  atomic_uint_fast64_t bells; /* rings so far */
  void (*after)(void *);
  void *arg;
};

void omni_event_init(omni_event *event, void (*deliver)(omni_event *), void (*drop)(omni_event *)) {
  event->next = NULL;
  atomic_init(&event->queued, false);
  event->deliver = deliver;
  event->drop = drop;
}

/* Runs all that is queued. Clearing `rung` with the swap means that whoever posts afterwards rings again. */
static void deliver_batch(omni_inbox *inbox) {
  omni_mutex_lock(&inbox->mutex);
  omni_event *event = inbox->head;
  inbox->head = inbox->tail = NULL;
  inbox->rung = false;
  omni_mutex_unlock(&inbox->mutex);
  while (event != NULL) {
    omni_event *next = event->next; /* before `queued` falls: from then on a post may reuse it */
    atomic_store(&event->queued, false);
    event->deliver(event);
    event = next;
  }
}

static void on_bell(uv_poll_t *bell, int status, int events) {
  (void)status, (void)events;
  omni_inbox *inbox = bell->data;
  uint64_t rings;
  (void)!omni_sys_read(inbox->fd, &rings, sizeof rings); /* before the swap: whoever posts after it rings again */
  /* Two batches and out: draining until empty would let events that post themselves starve timers. */
  deliver_batch(inbox);
  if (atomic_load(&inbox->rung)) deliver_batch(inbox);
  if (inbox->after != NULL) inbox->after(inbox->arg);
}

omni_inbox *omni_inbox_new(uv_loop_t *loop, void (*after)(void *), void *arg) {
  omni_inbox *inbox = calloc(1, sizeof *inbox);
  if (inbox == NULL) return NULL;
  inbox->fd = omni_sys_eventfd();
  if (inbox->fd < 0) goto fail_fd;
  if (uv_poll_init(loop, &inbox->bell, inbox->fd) != 0) goto fail_poll;
  uv_poll_start(&inbox->bell, UV_READABLE, on_bell);
  inbox->bell.data = inbox;
  uv_unref((uv_handle_t *)&inbox->bell);
  atomic_init(&inbox->refs, 2);
  atomic_init(&inbox->bells, 0);
  omni_mutex_init(&inbox->mutex);
  omni_cond_init(&inbox->quiet);
  inbox->after = after;
  inbox->arg = arg;
  return inbox;
fail_poll:
  omni_sys_close(inbox->fd);
fail_fd:
  free(inbox);
  return NULL;
}

omni_inbox *omni_inbox_ref(omni_inbox *inbox) {
  atomic_fetch_add_explicit(&inbox->refs, 1, memory_order_relaxed);
  return inbox;
}

void omni_inbox_unref(omni_inbox *inbox) {
  if (inbox == NULL || atomic_fetch_sub_explicit(&inbox->refs, 1, memory_order_acq_rel) != 1) return;
  omni_mutex_destroy(&inbox->mutex);
  omni_cond_destroy(&inbox->quiet);
  free(inbox);
}

/* Appends under the lock; tells whether the caller must ring. */
static omni_posted append(omni_inbox *inbox, omni_event *event, bool *ring) {
  omni_mutex_lock(&inbox->mutex);
  if (inbox->closed) {
    omni_mutex_unlock(&inbox->mutex);
    return OMNI_POSTED_CLOSED;
  }
  event->next = NULL;
  if (inbox->tail != NULL)
    inbox->tail->next = event;
  else
    inbox->head = event;
  inbox->tail = event;
  *ring = !inbox->rung;
  if (*ring) {
    inbox->rung = true;
    inbox->ringing++;
  }
  omni_mutex_unlock(&inbox->mutex);
  return OMNI_POSTED;
}

omni_posted omni_inbox_post(omni_inbox *inbox, omni_event *event) {
  if (atomic_exchange(&event->queued, true)) return OMNI_POSTED_BEFORE;
  bool ring = false;
  if (append(inbox, event, &ring) == OMNI_POSTED_CLOSED) {
    atomic_store(&event->queued, false);
    return OMNI_POSTED_CLOSED;
  }
  if (ring) {
    /* Outside the lock: a wake across CPUs costs the waker 12 us, and the woken would run into it. close() waits for
     * `ringing`, because a write to a closed descriptor may go to a stranger's. */
    uint64_t one = 1;
    (void)!omni_sys_write(inbox->fd, &one, sizeof one);
    atomic_fetch_add_explicit(&inbox->bells, 1, memory_order_relaxed);
    /* close() says closed, then looks at ringing; this is the other way round, so one of the two sees the other. */
    if (atomic_fetch_sub(&inbox->ringing, 1) == 1 && atomic_load(&inbox->closed)) {
      omni_mutex_lock(&inbox->mutex);
      omni_cond_signal(&inbox->quiet);
      omni_mutex_unlock(&inbox->mutex);
    }
  }
  return OMNI_POSTED;
}

static void on_closed(uv_handle_t *handle) {
  omni_inbox *inbox = handle->data;
  omni_sys_close(inbox->fd);
  omni_inbox_unref(inbox);
}

void omni_inbox_close(omni_inbox *inbox) {
  omni_mutex_lock(&inbox->mutex);
  if (inbox->closed) {
    omni_mutex_unlock(&inbox->mutex);
    return;
  }
  inbox->closed = true;
  while (inbox->ringing > 0)
    omni_cond_wait(&inbox->quiet, &inbox->mutex);
  omni_event *event = inbox->head;
  inbox->head = inbox->tail = NULL;
  omni_mutex_unlock(&inbox->mutex);
  while (event != NULL) {
    omni_event *next = event->next;
    atomic_store(&event->queued, false);
    event->drop(event);
    event = next;
  }
  uv_close((uv_handle_t *)&inbox->bell, on_closed);
}

void omni_inbox_keep(omni_inbox *inbox, bool keep) {
  if (keep)
    uv_ref((uv_handle_t *)&inbox->bell);
  else
    uv_unref((uv_handle_t *)&inbox->bell);
}

uint64_t omni_inbox_bells(omni_inbox *inbox) { return atomic_load_explicit(&inbox->bells, memory_order_relaxed); }
