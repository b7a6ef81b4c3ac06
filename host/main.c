/* Process entry: what must happen before any state exists, then the command line in Lua. */
#include "core/chunk.h"
#include "core/owner.h"
#include "lib/host.h"
#include "vm/signals.h"
#include "vm/state.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#ifdef __GLIBC__
#include <linux/close_range.h>
#endif

static char exe_path[4096];

/*
 * omnihost --child PPID [--same-group [--control]] -- program args...
 * The trampoline of every child: own process group, death with the thread that started it, no stray descriptors.
 */
static int child_main(int argc, char **argv) {
  int i = 2;
  if (argc < 5) return 2;
  pid_t parent = (pid_t)atol(argv[i++]);
  bool same_group = strcmp(argv[i], "--same-group") == 0;
  if (same_group) i++;
  bool control = same_group && strcmp(argv[i], "--control") == 0; /* descriptor 3 is the program's too */
  if (control) i++;
  if (i + 1 >= argc || strcmp(argv[i], "--") != 0) return 2;
  char **command = argv + i + 1;
  if (!same_group) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  /* The signal never comes if the parent died before it was asked for. */
  if (getppid() != parent) _exit(137);
  close_range(same_group ? (control ? 4 : 3) : 5, ~0U, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  execvp(command[0], command);
  fprintf(stderr, "omnihost: cannot run %s: %s\n", command[0], strerror(errno));
  return errno == ENOENT ? 127 : 126;
}

/* omnihost --worker SCRIPT_DIR: a stage's process; the rest comes through descriptor 3. */

/* Leaves require("omni.cli").main (or the worker's) and its arguments on the stack. */
static int push_main(lua_State *L) {
  char **argv = lua_touserdata(L, 1);
  lua_settop(L, 0);
  bool worker = argv[1] != NULL && strcmp(argv[1], "--worker") == 0;
  lua_getglobal(L, "require");
  lua_pushstring(L, worker ? "omni.worker" : "omni.cli");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "main");
  lua_remove(L, -2);
  for (int i = 1; argv[i] != NULL; i++) {
    luaL_checkstack(L, 4, "too many arguments");
    lua_pushstring(L, argv[i]);
  }
  return lua_gettop(L);
}

static int run(vm_state *S, char **argv) {
  lua_State *L = vm_main(S);
  lua_pushcfunction(L, push_main);
  lua_pushlightuserdata(L, argv);
  if (lua_pcall(L, 1, LUA_MULTRET, 0) != 0) {
    fprintf(stderr, "omnihost: %s\n", lua_tostring(L, -1));
    return 1;
  }
  vm_state_start(S, lua_gettop(L) - 1);
  return vm_state_run(S);
}

/* OMNIHOST_LUA names the source tree or its lua folder. False where it is set and is neither: no effect would be worse.
 */
static bool find_lua_root(void) {
  static char root[4096];
  const char *given = getenv("OMNIHOST_LUA");
  if (given == NULL || given[0] == '\0') return true;
  static const char *const forms[] = {"%s", "%s/lua"};
  for (size_t i = 0; i < 2; i++) {
    char file[sizeof root + sizeof "/omni/init.lua"];
    snprintf(root, sizeof root, forms[i], given);
    snprintf(file, sizeof file, "%s/omni/init.lua", root);
    if (access(file, R_OK) != 0) continue;
    vm_conf.lua_root = root;
    return true;
  }
  fprintf(stderr, "omnihost: OMNIHOST_LUA: there is no omni/init.lua in %s or in its lua folder\n", given);
  return false;
}

/* Descriptors 0 to 2 must be something: libuv takes them for its own otherwise, and aborts when it closes them. */
static void fill_standard_streams(void) {
  int fd;
  do
    fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

int main(int argc, char **argv) {
  fill_standard_streams();
  if (argc > 1 && strcmp(argv[1], "--child") == 0) return child_main(argc, argv);
  bool worker = argc > 1 && strcmp(argv[1], "--worker") == 0;
  vm_signals_prepare();
  ssize_t n = readlink("/proc/self/exe", exe_path, sizeof exe_path - 1);
  if (n > 0) vm_conf.exe = exe_path;
  if (!find_lua_root()) return 2;
  if (worker && argc > 2) vm_conf.script_dir = argv[2];
  vm_state *S = vm_state_new(worker ? "worker" : "main");
  if (S == NULL) {
    fprintf(stderr, "omnihost: a Lua state cannot be made: memory or descriptors are short\n");
    return 1;
  }
  if (!worker && !vm_signals_start(S))
    fprintf(stderr, "omnihost: no thread for signals: they have their default effect\n");
  int code = run(S, argv);
  omni_host_stop_control();
  fflush(NULL);
  vm_state_close(S);
  omni_chunks_join_threads();
  omni_owner_emergency(); /* while signals are still counted: one now must not skip the sweep */
  vm_signals_stop();
  return code;
}
