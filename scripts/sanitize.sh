#!/usr/bin/env bash
# Kernel tests under NVIDIA's compute-sanitizer: accesses out of bounds or misaligned (memcheck), unordered accesses to shared
# memory (racecheck). Needs a CUDA device; shapes are small, since checked kernels run many times slower.
#
#     scripts/sanitize.sh              both tools
#     scripts/sanitize.sh racecheck    one of them
#
# PYTHON names the interpreter, SANITIZE_LOGS a folder for the logs. Exits with 1 if a tool reports anything or a test fails.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

python=${PYTHON:-python3}
logs=${SANITIZE_LOGS:-$(mktemp -d)}
tools=("$@")
((${#tools[@]})) || tools=(memcheck racecheck)
tests=tests/stages/omni_ar/kernels
limit=400 # seconds of one shard

find_sanitizer() {
    command -v compute-sanitizer && return
    local candidate
    for candidate in /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer \
        /opt/nvidia/*/compute-sanitizer /opt/nvidia/*/*/compute-sanitizer; do
        [[ -x $candidate ]] && echo "$candidate" && return
    done
    return 1
}

# Tests without the marker `gpu` have the interpreter's tiny shapes, and run on the device where there is one.
tiny='not gpu and not slow'
shards=(layers overlap attention experts steps)
select_tests() {
    case $1 in
        layers) selection=(-m "$tiny" "$tests"/test_{norm,rope,activation,frame,linear}_kernels.py) ;;
        overlap) selection=(-m gpu -k "not captured" "$tests/test_overlapping_kernels.py") ;;
        attention) selection=(-m "$tiny" "$tests/test_attention_kernels.py") ;;
        experts) selection=(-m "$tiny" "$tests/test_moe_kernels.py") ;;
        steps) selection=(-m gpu -k "cuda and not captured" "$tests"/test_{sampling,step}_kernels.py) ;;
    esac
}

check() {
    local tool=$1 shard=$2 log=$logs/$1-$2.log
    local options=(--tool "$tool" --error-exitcode 86 --target-processes application-only --print-limit 20)
    # Tensors have bounds of their own only where each is an allocation of its own.
    [[ $tool == memcheck ]] && export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    [[ $tool == racecheck ]] && options+=(--racecheck-report analysis)
    select_tests "$shard"
    timeout $limit "$sanitizer" "${options[@]}" "$python" -m pytest -q -p no:cacheprovider "${selection[@]}" >"$log" 2>&1
    local status=$?
    # Warnings of hazards do not show in the status, and neither does a tool that could not attach.
    grep -q '^========= .*SUMMARY: 0 ' "$log" || status=1
    ((status == 0)) || { echo "== $tool $shard failed ($status), see $log:" && tail -n 30 "$log"; }
    return $status
}

sanitizer=$(find_sanitizer) || {
    echo "compute-sanitizer is not installed: it comes with the CUDA toolkit (package cuda-sanitizer)"
    exit 1
}
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
    echo "$python sees no CUDA device"
    exit 1
}

failed=0
for tool in "${tools[@]}"; do
    running=() clean=1
    for shard in "${shards[@]}"; do
        check "$tool" "$shard" &
        running+=($!)
    done
    for process in "${running[@]}"; do
        wait "$process" || clean=0
    done
    ((clean)) && echo "== $tool: nothing to report" || failed=1
done
exit $failed
