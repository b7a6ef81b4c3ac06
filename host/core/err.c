#include "core/err.h"

#include <errno.h>

static const struct {
  const char *name, *text;
} errors[OMNI_ERR_MAX] = {[OMNI_OK] = {"OK", "no error"},
#define X(code, text) [OMNI_##code] = {#code, text},
                          OMNI_ERR_MAP(X)
#undef X
};

const char *omni_err_name(omni_err err) { return (unsigned)err < OMNI_ERR_MAX ? errors[err].name : "ESYS"; }

const char *omni_err_text(omni_err err) { return errors[(unsigned)err < OMNI_ERR_MAX ? err : OMNI_ESYS].text; }

omni_err omni_err_from_errno(int errnum) {
  switch (errnum) {
  case 0: return OMNI_OK;
  case EAGAIN: return OMNI_EBUSY;
  case EEXIST: return OMNI_EEXIST;
  case ENOENT:
  case ENOTDIR: return OMNI_ENOENT;
  case EINVAL: return OMNI_EINVAL;
  case ENOMEM: return OMNI_ENOMEM;
  case ENOSPC:
  case EDQUOT: return OMNI_ENOSPC;
  case EACCES:
  case EPERM:
  case ELOOP: return OMNI_EACCES;
  case EIO: return OMNI_EIO;
  case EMFILE:
  case ENFILE: return OMNI_EMFILE;
  case EFBIG:
  case ENAMETOOLONG: return OMNI_E2BIG;
  case ETIMEDOUT: return OMNI_ETIMEDOUT;
  case ECANCELED: return OMNI_ECANCELED;
  default: return OMNI_ESYS;
  }
}
