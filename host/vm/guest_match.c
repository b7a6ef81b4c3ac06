/*
 * Lua's patterns with a budget: every step is counted and charged to the guest, and the recursion is bounded, so that
 * no pattern can spend minutes in one call. Nothing here calls Lua, but errors are raised.
 */
#include "vm/guest_private.h"

#include <ctype.h>
#include <string.h>

#define DEPTH 200   /* as in Lua: "pattern too complex" beyond */
#define CHARGE 2000 /* steps between two charges */

void guest_matcher_init(guest_matcher *m, lua_State *L, const char *text, size_t len, const char *pattern,
                        size_t plen) {
  m->L = L;
  m->text = text;
  m->text_end = text + len;
  m->pattern_end = pattern + plen;
  m->depth = DEPTH;
  m->steps = 0;
  m->captures = 0;
}

void guest_matcher_done(guest_matcher *m) {
  size_t steps = m->steps;
  m->steps = 0;
  vm_guest_charge(m->L, steps);
}

static void step(guest_matcher *m) {
  if (++m->steps >= CHARGE) guest_matcher_done(m);
}

/* ---- one item ---- */

/* Behind the item (a character, a class or a set) that starts at p. */
static const char *item_end(guest_matcher *m, const char *p) {
  char first = *p++;
  if (first == '%') {
    if (p == m->pattern_end) luaL_error(m->L, "malformed pattern (ends with '%%')");
    return p + 1;
  }
  if (first != '[') return p;
  if (p < m->pattern_end && *p == '^') p++;
  do { /* a ']' in the first place is a character */
    if (p == m->pattern_end) luaL_error(m->L, "malformed pattern (missing ']')");
    if (*p++ == '%' && p < m->pattern_end) p++;
  } while (p == m->pattern_end || *p != ']');
  return p + 1;
}

static bool in_class(int c, int class) {
  bool in;
  switch (tolower(class)) {
  case 'a': in = isalpha(c); break;
  case 'c': in = iscntrl(c); break;
  case 'd': in = isdigit(c); break;
  case 'g': in = isgraph(c); break;
  case 'l': in = islower(c); break;
  case 'p': in = ispunct(c); break;
  case 's': in = isspace(c); break;
  case 'u': in = isupper(c); break;
  case 'w': in = isalnum(c); break;
  case 'x': in = isxdigit(c); break;
  case 'z': in = c == 0; break;
  default: return class == c;
  }
  return isupper(class) ? !in : in;
}

/* p is at '[', end at its ']'. */
static bool in_set(int c, const char *p, const char *end) {
  bool wanted = true;
  if (*++p == '^') {
    wanted = false;
    p++;
  }
  for (; p < end; p++) {
    if (*p == '%') {
      p++;
      if (in_class(c, (unsigned char)*p)) return wanted;
    } else if (p + 2 < end && p[1] == '-') {
      if ((unsigned char)p[0] <= c && c <= (unsigned char)p[2]) return wanted;
      p += 2;
    } else if ((unsigned char)*p == c) {
      return wanted;
    }
  }
  return !wanted;
}

static bool fits(guest_matcher *m, const char *at, const char *p, const char *end) {
  step(m);
  if (at >= m->text_end) return false;
  int c = (unsigned char)*at;
  switch (*p) {
  case '.': return true;
  case '%': return in_class(c, (unsigned char)p[1]);
  case '[': m->steps += (size_t)(end - p) / 4; return in_set(c, p, end - 1);
  default: return (unsigned char)*p == c;
  }
}

/* ---- the special items ---- */

static const char *match_balance(guest_matcher *m, const char *at, const char *p) {
  if (m->pattern_end - p < 2) luaL_error(m->L, "unbalanced pattern");
  if (at >= m->text_end || *at != p[0]) return NULL;
  int open = 1;
  for (at++; at < m->text_end; at++) {
    step(m);
    if (*at == p[1]) {
      if (--open == 0) return at + 1;
    } else if (*at == p[0]) {
      open++;
    }
  }
  return NULL;
}

/* %f[set]: where the set begins. */
static const char *match_frontier(guest_matcher *m, const char *at, const char *p) {
  if (p >= m->pattern_end || *p != '[') luaL_error(m->L, "missing '[' after '%%f' in pattern");
  const char *end = item_end(m, p);
  int previous = at == m->text ? 0 : (unsigned char)at[-1], here = at < m->text_end ? (unsigned char)*at : 0;
  if (in_set(previous, p, end - 1) || !in_set(here, p, end - 1)) return NULL;
  return guest_matcher_at(m, at, end);
}

static const char *match_back(guest_matcher *m, const char *at, int digit) {
  int i = digit - '1';
  if (i < 0 || i >= m->captures || m->capture[i].len == GUEST_CAPTURE_OPEN) luaL_error(m->L, "invalid capture index");
  ptrdiff_t len = m->capture[i].len;
  if (len < 0) return NULL; /* a position: there is no text to find again */
  m->steps += (size_t)len / 64;
  bool same = m->text_end - at >= len && memcmp(m->capture[i].start, at, (size_t)len) == 0;
  return same ? at + len : NULL;
}

static const char *open_capture(guest_matcher *m, const char *at, const char *p, ptrdiff_t len) {
  if (m->captures >= GUEST_CAPTURES) luaL_error(m->L, "too many captures");
  m->capture[m->captures++] = (guest_capture){at, len};
  const char *end = guest_matcher_at(m, at, p);
  if (end == NULL) m->captures--;
  return end;
}

static const char *close_capture(guest_matcher *m, const char *at, const char *p) {
  int i = m->captures - 1;
  while (i >= 0 && m->capture[i].len != GUEST_CAPTURE_OPEN)
    i--;
  if (i < 0) luaL_error(m->L, "invalid pattern capture");
  m->capture[i].len = at - m->capture[i].start;
  const char *end = guest_matcher_at(m, at, p);
  if (end == NULL) m->capture[i].len = GUEST_CAPTURE_OPEN;
  return end;
}

/* ---- repetition: the item p..end-1, the rest of the pattern behind its sign ---- */

static const char *match_longest(guest_matcher *m, const char *at, const char *p, const char *end, ptrdiff_t least) {
  ptrdiff_t n = 0;
  while (fits(m, at + n, p, end))
    n++;
  for (; n >= least; n--) {
    const char *found = guest_matcher_at(m, at + n, end + 1);
    if (found != NULL) return found;
  }
  return NULL;
}

static const char *match_shortest(guest_matcher *m, const char *at, const char *p, const char *end) {
  for (;; at++) {
    const char *found = guest_matcher_at(m, at, end + 1);
    if (found != NULL) return found;
    if (!fits(m, at, p, end)) return NULL;
  }
}

/* ---- the pattern ---- */

typedef enum next_step { STEP_DONE, STEP_AGAIN } next_step;

/* Items that are no single characters. STEP_AGAIN: go on at *at and *p. */
static next_step match_special(guest_matcher *m, const char **at, const char **p, bool *taken) {
  *taken = true;
  char second = *p + 1 < m->pattern_end ? (*p)[1] : '\0';
  if (**p == '(') {
    bool position = second == ')';
    *at = open_capture(m, *at, *p + (position ? 2 : 1), position ? GUEST_CAPTURE_POSITION : GUEST_CAPTURE_OPEN);
    return STEP_DONE;
  }
  if (**p == ')') {
    *at = close_capture(m, *at, *p + 1);
    return STEP_DONE;
  }
  if (**p == '$' && *p + 1 == m->pattern_end) {
    if (*at != m->text_end) *at = NULL;
    return STEP_DONE;
  }
  if (**p == '%' && second == 'f') {
    *at = match_frontier(m, *at, *p + 2);
    return STEP_DONE;
  }
  if (**p == '%' && (second == 'b' || isdigit((unsigned char)second))) {
    *at = second == 'b' ? match_balance(m, *at, *p + 2) : match_back(m, *at, second);
    *p += second == 'b' ? 4 : 2;
    return *at == NULL ? STEP_DONE : STEP_AGAIN;
  }
  *taken = false;
  return STEP_AGAIN;
}

/* A single character's item and its sign. */
static next_step match_item(guest_matcher *m, const char **at, const char **p) {
  const char *end = item_end(m, *p), *found;
  char sign = end < m->pattern_end ? *end : '\0';
  switch (sign) {
  case '?':
    if (fits(m, *at, *p, end) && (found = guest_matcher_at(m, *at + 1, end + 1)) != NULL) {
      *at = found;
      return STEP_DONE;
    }
    *p = end + 1;
    return STEP_AGAIN;
  case '*':
  case '+': *at = match_longest(m, *at, *p, end, sign == '+'); return STEP_DONE;
  case '-': *at = match_shortest(m, *at, *p, end); return STEP_DONE;
  default:
    *at = fits(m, *at, *p, end) ? *at + 1 : NULL;
    *p = end;
    return *at == NULL ? STEP_DONE : STEP_AGAIN;
  }
}

const char *guest_matcher_at(guest_matcher *m, const char *at, const char *p) {
  if (m->depth-- == 0) luaL_error(m->L, "pattern too complex");
  next_step next = STEP_AGAIN;
  while (next == STEP_AGAIN && p < m->pattern_end) {
    bool taken;
    step(m);
    next = match_special(m, &at, &p, &taken);
    if (!taken) next = match_item(m, &at, &p);
  }
  m->depth++;
  return at;
}

/* ---- captures ---- */

void guest_matcher_push(guest_matcher *m, int i, const char *from, const char *to) {
  if (i >= m->captures) {
    if (i != 0) luaL_error(m->L, "invalid capture index");
    lua_pushlstring(m->L, from, (size_t)(to - from));
    return;
  }
  guest_capture *c = &m->capture[i];
  if (c->len == GUEST_CAPTURE_OPEN) luaL_error(m->L, "unfinished capture");
  if (c->len == GUEST_CAPTURE_POSITION)
    lua_pushinteger(m->L, c->start - m->text + 1);
  else
    lua_pushlstring(m->L, c->start, (size_t)c->len);
  m->steps += c->len > 0 ? (size_t)c->len / 16 : 0;
}

int guest_matcher_push_all(guest_matcher *m, const char *from, const char *to) {
  int n = m->captures == 0 && from != NULL ? 1 : m->captures;
  luaL_checkstack(m->L, n + 4, "too many captures");
  for (int i = 0; i < n; i++)
    guest_matcher_push(m, i, from, to);
  return n;
}
