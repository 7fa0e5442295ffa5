# Sourced by `.ci/run` and `.ci/nightly`: tests that failed and then passed are not lost, and not many may.
#
# A test with real processes may run out of time on a busy machine, so what failed runs once more,
# alone. What fails then too fails CI. What passes then is named in the last lines of the run, and
# more than FLAKY_MAX of them fail it as well: else no developer would look into them.
FLAKY_MAX=2
flaky=()
budget=0 # of one run of pytest, as `timeout` takes it; 0: as long as it needs

# The tests that failed in the last run of pytest, one a line, as pytest remembers them.
last_failed() {
    .venv/bin/python - <<'PYTHON'
import json, pathlib
for name in json.loads(pathlib.Path(".pytest_cache/v/cache/lastfailed").read_text()):
    print(name)
PYTHON
}

# `PYTEST COMMAND || once_more ARGUMENTS`: with the arguments that choose the same tests.
once_more() {
    local failed
    if ! failed=$(last_failed) || [ -z "$failed" ]; then
        echo "expected pytest to name what failed, it named nothing: see above why it ended"
        return 1
    fi
    echo "+ once more, alone, what failed"
    timeout --kill-after=60 "$budget" .venv/bin/pytest -n 0 --last-failed "$@" || return
    while IFS= read -r name; do flaky+=("$name"); done <<<"$failed"
}

tell_flaky() {
    local status=$? running
    running=$(jobs -p)
    if [ -n "$running" ]; then # else what runs beside a stage that failed is left
        # shellcheck disable=SC2086 -- several numbers
        kill $running || true
        wait || true # until it has ended: the next run must not meet it
    fi
    if [ "${#flaky[@]}" -gt "$FLAKY_MAX" ]; then
        echo "expected at most $FLAKY_MAX tests that fail first and pass then, got ${#flaky[@]}: mend them"
        [ "$status" != 0 ] || status=1
    fi
    for name in "${flaky[@]}"; do echo "FLAKY: $name"; done
    exit "$status"
}

rm -f .pytest_cache/v/cache/lastfailed # of an earlier run, by hand
trap tell_flaky EXIT
