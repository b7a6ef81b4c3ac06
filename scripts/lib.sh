# Shared by scripts/test and scripts/lint; to be sourced. Each test leaves one line in $OMNI_TEST_DIR/results,
# "pass|fail|skip<TAB>name<TAB>reason", and a failed one its output in $OMNI_TEST_DIR/failed.
failed=0
failed_log=${OMNI_TEST_DIR:+$OMNI_TEST_DIR/failed}

record() { # RESULT NAME [REASON]
  [[ -z ${OMNI_TEST_DIR:-} ]] || printf '%s\t%s\t%s\n' "$1" "$2" "${3:-}" >>"$OMNI_TEST_DIR/results"
}

# At most 120 lines: the first and the last of them.
brief() { awk '{ line[NR] = $0 } END { for (i = 1; i <= NR; i++)
  if (NR <= 120 || i <= 80 || i > NR - 40) print line[i]; else if (i == 81) print "... (" NR - 120 " lines left out)" }'; }

# Runs a command as one test: part NAME COMMAND…
part() {
  local name=$1 said status=0 started=${EPOCHREALTIME/./}
  shift
  said=$("$@" 2>&1 </dev/null) || status=$?
  if [[ $status == 0 ]]; then
    record pass "$name"
    echo "ok - $name ($(((${EPOCHREALTIME/./} - started) / 1000)) ms)"
    return
  fi
  failed=1
  record fail "$name"
  printf 'not ok - %s (status %d)\n%s\n' "$name" "$status" "$(brief <<<"$said")" | tee -a "${failed_log:-/dev/null}"
}
