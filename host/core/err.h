/* Error codes of the engine: one map makes the enum, the names and the default texts. */
#ifndef OMNI_CORE_ERR_H
#define OMNI_CORE_ERR_H

/* Code, default text. Names appear to Lua as "ECODE: text", "ECODE". */
#define OMNI_ERR_MAP(X)                                                                                                \
  X(ECLOSED, "the object is closed")                                                                                   \
  X(ETIMEDOUT, "the deadline passed")                                                                                  \
  X(EFULL, "the queue is full")                                                                                        \
  X(EBUSY, "somebody else holds the lock")                                                                             \
  X(EEXIST, "it exists already")                                                                                       \
  X(ENOENT, "there is no such thing")                                                                                  \
  X(EINVAL, "the value is not valid")                                                                                  \
  X(ENOMEM, "out of memory")                                                                                           \
  X(ENOSPC, "no space is left")                                                                                        \
  X(EACCES, "it belongs to somebody else")                                                                             \
  X(EIO, "input or output failed")                                                                                     \
  X(EMFILE, "too many open files or watches")                                                                          \
  X(ECORRUPT, "the stored data is not whole")                                                                          \
  X(E2BIG, "the value is too large")                                                                                   \
  X(ECANCELED, "cancelled")                                                                                            \
  X(EABORTED, "aborted by its user")                                                                                   \
  X(EDEADLOCK, "everybody waits for everybody")                                                                        \
  X(ESTAGE, "a stage failed")                                                                                          \
  X(EWORKER, "a worker process died")                                                                                  \
  X(EPUT, "a chunk could not be stored")                                                                               \
  X(EPROTOCOL, "a peer broke the protocol")                                                                            \
  X(EJSON, "not JSON")                                                                                                 \
  X(ECODEC, "the value cannot cross to another state")                                                                 \
  X(ERUN, "Lua code failed")                                                                                           \
  X(ECALLS, "the budget of calls is used up")                                                                          \
  X(EDEADLINE, "the run's time is over")                                                                               \
  X(EINSTRUCTIONS, "the budget of instructions is used up")                                                            \
  X(EMEMORY, "the memory limit is reached")                                                                            \
  X(ESYNTAX, "not a Lua program")                                                                                      \
  X(ESYS, "a system call failed")

typedef enum omni_err {
  OMNI_OK = 0,
#define X(code, text) OMNI_##code,
  OMNI_ERR_MAP(X)
#undef X
      OMNI_ERR_MAX
} omni_err;

/* "ECODE" of an error; "OK" for OMNI_OK. Never NULL. */
const char *omni_err_name(omni_err err);

/* The default text of an error. Never NULL. */
const char *omni_err_text(omni_err err);

/* The code that stands for a system errno (ESYS where there is none of its own). */
omni_err omni_err_from_errno(int errnum);

#endif
