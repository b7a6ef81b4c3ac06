/* What main tells the bindings. */
#ifndef OMNI_LIB_HOST_H
#define OMNI_LIB_HOST_H

/* Handle of the worker's control channel, stopped by main before its state is closed. */
void omni_host_stop_control(void);

#endif
