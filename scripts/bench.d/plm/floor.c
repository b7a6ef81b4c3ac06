/* The floor: a pool of plain pthreads whose jobs sleep. floor JOBS MILLISECONDS ROUNDS prints the first quarter of the
 * milliseconds from the first job's submission to the last one's end, for one job and for all, as JSON. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define JOBS_MAX 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static int waiting, running; /* jobs that no thread has taken; jobs that are not done */
static struct timespec length;

static void *worker(void *arg) {
  pthread_mutex_lock(&lock);
  for (;;) {
    while (waiting == 0)
      pthread_cond_wait(&work, &lock);
    waiting--;
    pthread_mutex_unlock(&lock);
    nanosleep(&length, NULL);
    pthread_mutex_lock(&lock);
    if (--running == 0) pthread_cond_signal(&done);
  }
  return arg;
}

static double now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static double batch(int jobs) {
  double began = now();
  pthread_mutex_lock(&lock);
  waiting = running = jobs;
  pthread_cond_broadcast(&work);
  while (running > 0)
    pthread_cond_wait(&done, &lock);
  pthread_mutex_unlock(&lock);
  return now() - began;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double quarter(int jobs, int rounds) {
  double *took = malloc((size_t)rounds * sizeof *took);
  for (int i = 0; i < rounds; i++)
    took[i] = batch(jobs);
  qsort(took, (size_t)rounds, sizeof *took, compare);
  double found = took[rounds / 4];
  free(took);
  return found;
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  int jobs = atoi(argv[1]), rounds = atoi(argv[3]);
  double ms = atof(argv[2]);
  if (jobs < 1 || jobs > JOBS_MAX || rounds < 1) return 2;
  length = (struct timespec){(time_t)(ms / 1e3), (long)((ms - (double)(long)(ms / 1e3) * 1e3) * 1e6)};
  for (int i = 0; i < jobs; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, worker, NULL) != 0) return 1;
  }
  batch(jobs);
  printf("{\"one\":%.4f,\"all\":%.4f}\n", quarter(1, rounds), quarter(jobs, rounds));
  return 0;
}
