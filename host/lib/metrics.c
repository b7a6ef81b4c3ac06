/*
 * omni.native.metrics: making, counting and listing. Methods of metrics never raise: whatever cannot be counted is
 * counted as dropped, in omni_metrics_dropped.
 */
#include "core/metrics.h"
#include "core/buf.h"
#include "lib/modules.h"
#include "vm/vm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"counter", "gauge", "histogram", NULL};

/* ---- metrics ---- */

static _Atomic(omni_metric *) dropped; /* made by the first drop; its reference is the process's */

static void drop(void) {
  omni_metric *metric = atomic_load_explicit(&dropped, memory_order_acquire);
  if (metric == NULL) {
    omni_metric *none = NULL;
    metric = omni_metric_new(OMNI_COUNTER, "omni_metrics_dropped", "");
    if (!atomic_compare_exchange_strong(&dropped, &none, metric)) {
      omni_metric_unref(metric);
      metric = none;
    }
  }
  omni_metric_add(metric, 1);
}

/* The metric at 1, if it is one; not raising, so not by vm_object_check. */
static omni_metric *metric_at(lua_State *L) {
  vm_handle *handle = vm_handle_test(L, 1);
  bool ours = handle != NULL && strncmp(handle->class->name, "omni.metrics.", 13) == 0;
  return ours ? handle->object : NULL;
}

/* The number at 2 without its fraction; false if there is none that fits. */
static bool number_at(lua_State *L, double least, double *value) {
  if (lua_type(L, 2) != LUA_TNUMBER) return false;
  *value = trunc(lua_tonumber(L, 2));
  return *value >= least && *value < 0x1p63;
}

static void add_or_drop(lua_State *L, double least) {
  omni_metric *metric = metric_at(L);
  double value = 1;
  if (metric == NULL || (!lua_isnoneornil(L, 2) && !number_at(L, least, &value)))
    drop();
  else
    omni_metric_add(metric, (int64_t)value);
}

/* counter:add([n]): n at least 0, default 1 */
static int counter_add(lua_State *L) {
  add_or_drop(L, 0);
  return 0;
}

/* gauge:add([n]) */
static int gauge_add(lua_State *L) {
  add_or_drop(L, -0x1p63);
  return 0;
}

/* gauge:set(n) */
static int gauge_set(lua_State *L) {
  omni_metric *metric = metric_at(L);
  double value;
  if (metric == NULL || !number_at(L, -0x1p63, &value))
    drop();
  else
    omni_metric_set(metric, (int64_t)value);
  return 0;
}

/* histogram:observe(n): n at least 0 */
static int histogram_observe(lua_State *L) {
  omni_metric *metric = metric_at(L);
  double value;
  if (metric == NULL || !number_at(L, 0, &value))
    drop();
  else
    omni_metric_observe(metric, (uint64_t)value);
  return 0;
}

/* metric:value() -> number */
static int metric_value(lua_State *L) {
  omni_metric *metric = metric_at(L);
  lua_pushnumber(L, metric != NULL ? (lua_Number)omni_metric_value(metric) : 0);
  return 1;
}

static void *metric_ref(void *metric) { return omni_metric_ref(metric); }
static void metric_unref(void *metric) { omni_metric_unref(metric); }

static const luaL_Reg counter_methods[] = {{"add", counter_add}, {"value", metric_value}, {NULL, NULL}};
static const luaL_Reg gauge_methods[] = {{"add", gauge_add}, {"set", gauge_set}, {"value", metric_value}, {NULL, NULL}};
static const luaL_Reg histogram_methods[] = {{"observe", histogram_observe}, {"value", metric_value}, {NULL, NULL}};

static const vm_class classes[] = {
    [OMNI_COUNTER] = {"omni.metrics.counter", metric_ref, metric_unref, counter_methods},
    [OMNI_GAUGE] = {"omni.metrics.gauge", metric_ref, metric_unref, gauge_methods},
    [OMNI_HISTOGRAM] = {"omni.metrics.histogram", metric_ref, metric_unref, histogram_methods},
};

/* new(kind, name, labels) -> metric */
static int metrics_new(lua_State *L) {
  int kind = luaL_checkoption(L, 1, NULL, kinds);
  const char *name = luaL_checkstring(L, 2), *labels = luaL_checkstring(L, 3);
  vm_handle *handle = vm_handle_push(L, &classes[kind], NULL); /* first, for it can raise */
  handle->object = omni_metric_new((omni_metric_kind)kind, name, labels);
  return 1;
}

/* ---- listing ---- */

/* Copies of all metrics, strings included: Lua is called only after the visit, which an error must not leave. */
typedef struct listing {
  omni_buf views; /* omni_metric_view, one after the other; their name and labels dangle: they are in texts */
  omni_buf texts; /* name NUL labels NUL, in the same order */
} listing;

static int listing_gc(lua_State *L) {
  listing *list = lua_touserdata(L, 1);
  omni_buf_free(&list->views);
  omni_buf_free(&list->texts);
  return 0;
}

static listing *listing_push(lua_State *L) {
  listing *list = lua_newuserdata(L, sizeof *list);
  *list = (listing){0};
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, listing_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  return list;
}

static void copy(void *arg, const omni_metric_view *view) {
  listing *list = arg;
  omni_buf_put(&list->views, (const char *)view, sizeof *view);
  omni_buf_put(&list->texts, view->name, strlen(view->name) + 1);
  omni_buf_put(&list->texts, view->labels, strlen(view->labels) + 1);
}

static void set_number(lua_State *L, const char *key, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, key);
}

/* buckets = {{le=, count=}, …}: those that are not empty */
static void set_buckets(lua_State *L, const omni_metric_view *view) {
  int n = 0;
  lua_newtable(L);
  for (int i = 0; i < OMNI_METRIC_BUCKETS; i++) {
    if (view->buckets[i] == 0) continue;
    lua_createtable(L, 0, 2);
    set_number(L, "le", (double)omni_metric_bucket_max(i));
    set_number(L, "count", (double)view->buckets[i]);
    lua_rawseti(L, -2, ++n);
  }
  lua_setfield(L, -2, "buckets");
}

static void push_view(lua_State *L, const omni_metric_view *view, const char *name, const char *labels) {
  lua_createtable(L, 0, 8);
  lua_pushstring(L, name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, labels);
  lua_setfield(L, -2, "labels");
  lua_pushstring(L, kinds[view->kind]);
  lua_setfield(L, -2, "kind");
  set_number(L, "value", (double)view->value);
  if (view->kind != OMNI_HISTOGRAM) return;
  set_number(L, "sum", (double)view->sum);
  set_number(L, "p50", (double)omni_metric_quantile(view, 0.5));
  set_number(L, "p99", (double)omni_metric_quantile(view, 0.99));
  set_buckets(L, view);
}

/* list() -> {{name=, labels="text", kind=, value=, sum=, p50=, p99=, buckets=}, …} in order of name and labels */
static int metrics_list(lua_State *L) {
  listing *list = listing_push(L);
  omni_metrics_visit(copy, list);
  if (list->views.failed || list->texts.failed) return luaL_error(L, "out of memory");
  int n = (int)(list->views.len / sizeof(omni_metric_view));
  const char *text = list->texts.data;
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    omni_metric_view view;
    memcpy(&view, list->views.data + (size_t)i * sizeof view, sizeof view);
    const char *labels = text + strlen(text) + 1;
    push_view(L, &view, text, labels);
    lua_rawseti(L, -2, i + 1);
    text = labels + strlen(labels) + 1;
  }
  return 1;
}

int omni_open_metrics(lua_State *L) {
  static const luaL_Reg functions[] = {{"new", metrics_new}, {"list", metrics_list}, {NULL, NULL}};
  lua_createtable(L, 0, 2);
  luaL_register(L, NULL, functions);
  return 1;
}
