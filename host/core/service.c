#include "core/service.h"

static void *service_main(void *arg) {
  omni_service *service = arg;
  omni_mutex_lock(&service->lock);
  service->run();
  service->state = OMNI_SERVICE_OVER;
  omni_cond_broadcast(&service->ended);
  omni_mutex_unlock(&service->lock);
  return NULL;
}

/* The thread of an OVER service needs no lock any more, so joining it under the lock cannot wait for long. */
static void reap(omni_service *service) {
  if (service->state != OMNI_SERVICE_OVER) return;
  omni_thread_join(service->thread);
  service->state = OMNI_SERVICE_OFF;
}

static omni_err start(omni_service *service) {
  omni_err err = service->open != NULL ? service->open() : OMNI_OK;
  if (err != OMNI_OK) return err;
  service->state = OMNI_SERVICE_ON;
  int failed = omni_thread_start(&service->thread, service->name, service_main, service);
  if (failed == 0) return OMNI_OK;
  service->state = OMNI_SERVICE_OFF;
  return omni_err_from_errno(failed);
}

omni_err omni_service_use(omni_service *service) {
  omni_mutex_lock(&service->lock);
  reap(service);
  omni_err err = service->state == OMNI_SERVICE_OFF ? start(service) : OMNI_OK;
  if (err == OMNI_OK) service->users++;
  omni_mutex_unlock(&service->lock);
  return err;
}

void omni_service_release(omni_service *service) {
  omni_mutex_lock(&service->lock);
  if (--service->users == 0) service->wake();
  omni_mutex_unlock(&service->lock);
}

void omni_service_join(omni_service *service) {
  omni_mutex_lock(&service->lock);
  while (service->state == OMNI_SERVICE_ON && service->users == 0)
    omni_cond_wait(&service->ended, &service->lock);
  reap(service);
  omni_mutex_unlock(&service->lock);
}
