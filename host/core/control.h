/*
 * Control channel of a worker: a thread reads lines from a socket into a sink, so that aborts and the end of the host
 * are seen even while Lua computes. At the end of the stream the sink is closed; if the process has not ended within a
 * second, its group is killed.
 */
#ifndef OMNI_CORE_CONTROL_H
#define OMNI_CORE_CONTROL_H

#include "core/sink.h"

#define OMNI_CONTROL_LINE_MAX ((size_t)16 << 20) /* bytes; a longer line ends the channel as EOF would */

typedef struct omni_control omni_control;

/* Starts the thread on fd, which stays the caller's. Lines go to sink without their newline, with this tag in
 * blob.tag. NULL when no thread can be had. */
omni_control *omni_control_start(int fd, omni_sink *sink, uint32_t tag);

/* Ends and frees it: the process ends in order now. */
void omni_control_stop(omni_control *control);

#endif
