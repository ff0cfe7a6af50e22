#!/usr/bin/env bash
# Kernel tests under NVIDIA's compute-sanitizer: accesses out of bounds or misaligned (memcheck), unordered accesses to shared
# memory (racecheck). Needs a CUDA device; shapes are small, since checked kernels run many times slower.
#
#     scripts/sanitize.sh              both tools
#     scripts/sanitize.sh racecheck    one of them
#     scripts/sanitize.sh --list       the tests of each shard, without running them
#
# PYTHON names the interpreter, SANITIZE_LOGS a folder for the logs. Exits with 1 if a tool reports anything, a test fails, or a
# tool misses a planted fault.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

python=${PYTHON:-python3}
logs=${SANITIZE_LOGS:-$(mktemp -d)}
tools=("$@")
((${#tools[@]})) || tools=(memcheck racecheck)
tests=tests/stages/omni_ar/kernels
encoders=tests/stages/omni_encoder/kernels
vocoders=tests/stages/omni_vocoder/kernels
denoisers=tests/stages/omni_diffusion/kernels
frames=tests/stages/omni_frames/kernels
limit=240 # seconds of one shard
# Shards run side by side, and what is compared with runs on the CPU in part.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

find_sanitizer() {
    command -v compute-sanitizer && return
    local candidate
    for candidate in /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer \
        /opt/nvidia/*/compute-sanitizer /opt/nvidia/*/*/compute-sanitizer; do
        [[ -x $candidate ]] && echo "$candidate" && return
    done
    return 1
}

# Tests without the marker `gpu`, slow ones too, have the interpreter's tiny and odd shapes, and run on the device where there is one. Their tiles
# are smaller than a block, whose threads then hold copies. Copies of one sum may differ by a rounding, and racecheck reports that
# they are written to one place. It looks at tiles that fill their blocks.
tiny='not gpu'
served='served and not fp32 and not fp16 and not reference'
shards=(layers sums linear tiles overlap attention segments convolutions windows denoising experts sampling flat_rows steep_rows
    drafted_rows steps)
tiny_shards=(tiny_layers tiny_sums tiny_features tiny_segments tiny_convolutions tiny_windows tiny_denoising tiny_linear tiny_experts)
select_tests() {
    case $1 in
        tiny_layers) selection=(-m "$tiny" "$tests"/test_{norm,rope,activation,frame,attention}_kernels.py) ;;
        tiny_sums) selection=(-m "$tiny" -k "not compile" "$tests"/test_{embedding_kernels,sums_over_ranks}.py) ;;
        tiny_features) selection=(-m "$tiny" "$tests/test_attention_features.py") ;;
        tiny_segments) selection=(-m "$tiny" "$encoders/test_segment_attention_kernels.py") ;;
        tiny_convolutions) selection=(-m "$tiny" "$vocoders/test_causal_conv_kernels.py" "$frames/test_snake_kernels.py") ;;
        tiny_windows) selection=(-m "$tiny" "$vocoders"/test_{window_attention,residual_norm}_kernels.py) ;;
        tiny_denoising) selection=(-m "$tiny" "$denoisers" --ignore "$denoisers/test_diffusion_kernels_compile.py") ;;
        tiny_linear) selection=(-m "$tiny" "$tests/test_linear_kernels.py") ;;
        tiny_experts) selection=(-m "$tiny" "$tests/test_moe_kernels.py") ;;
        layers) selection=(-m gpu -k "$served" "$tests"/test_{norm,rope,activation,frame}_kernels.py) ;;
        # Ranks in processes of their own are not seen: one rank's kernel is.
        sums) selection=(-m gpu -k "$served" "$tests"/test_{embedding_kernels,sums_over_ranks}.py) ;;
        linear) selection=(-m gpu -k "$served and not test_tiles" "$tests/test_linear_kernels.py") ;;
        tiles) selection=(-m gpu -k "$served and test_tiles" "$tests/test_linear_kernels.py") ;;
        overlap) selection=(-m gpu -k "not captured" "$tests/test_overlapping_kernels.py") ;;
        attention) selection=(-m gpu -k "$served" "$tests"/test_attention_{kernels,features}.py) ;;
        segments) selection=(-m gpu -k "$served" "$encoders/test_segment_attention_kernels.py") ;;
        convolutions) selection=(-m gpu -k "$served" "$vocoders/test_causal_conv_kernels.py") ;;
        windows) selection=(-m gpu -k "$served" "$vocoders"/test_{window_attention,residual_norm}_kernels.py) ;;
        denoising) selection=(-m gpu -k "$served" "$denoisers") ;;
        experts) selection=(-m gpu -k "$served" "$tests/test_moe_kernels.py") ;;
        sampling) selection=(-m gpu -k "not random_rows" "$tests/test_sampling_kernels.py") ;;
        flat_rows) selection=(-m gpu -k "random_rows and 0.2" "$tests/test_sampling_kernels.py") ;;
        steep_rows) selection=(-m gpu -k "random_rows and 3.0" "$tests/test_sampling_kernels.py") ;;
        drafted_rows) selection=(-m gpu "$tests/test_drafted_sampling.py") ;;
        steps) selection=(-m gpu "$tests"/test_{step,draft}_kernels.py) ;;
    esac
}

if [[ ${1-} == --list ]]; then
    for shard in "${shards[@]}" "${tiny_shards[@]}"; do
        select_tests "$shard"
        echo "$shard: ${selection[*]}"
    done
    exit
fi

# Runs a command under a tool.
under() {
    local tool=$1 log=$2 part
    shift 2
    local options=(--tool "$tool" --error-exitcode 86 --target-processes application-only --print-limit 20)
    # Tensors have bounds of their own only where each is an allocation of its own.
    [[ $tool == memcheck ]] && export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    [[ $tool == racecheck ]] && options+=(--racecheck-report analysis)
    # Kernels of torch and of libraries, with which ours are compared: C++ names, and some that are not.
    for part in _Z nvjet cudnn cublas cutlass gemm; do options+=(--kernel-name-exclude "kns=$part"); done
    timeout $limit "$sanitizer" "${options[@]}" "$@" >"$log" 2>&1
}

check() {
    local tool=$1 shard=$2 log=$logs/$1-$2.log
    select_tests "$shard"
    local start=$SECONDS
    under "$tool" "$log" "$python" -m pytest -q -p no:cacheprovider "${selection[@]}"
    local status=$?
    # Warnings of hazards do not show in the status, and neither does a tool that could not attach.
    grep -q '^========= .*SUMMARY: 0 ' "$log" || status=1
    echo "$tool $shard: $((SECONDS - start)) s, $(grep -E '(passed|failed|error).* in ' "$log" | tail -n 1)"
    ((status == 0)) || { echo "== $tool $shard failed ($status), see $log:" && tail -n 30 "$log"; }
    return $status
}

finds_the_planted_fault() {
    local tool=$1 log=$logs/$1-planted.log
    under "$tool" "$log" "$python" scripts/planted_fault.py "$tool"
    grep -q '^========= .*SUMMARY: [1-9]' "$log" && return
    echo "== $tool does not find what is planted, see $log:" && tail -n 30 "$log"
    return 1
}

sanitizer=$(find_sanitizer) || {
    echo "compute-sanitizer is not installed: it comes with the CUDA toolkit (package cuda-sanitizer)"
    exit 1
}
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
    echo "$python sees no CUDA device"
    exit 1
}
mkdir -p "$logs"

failed=0
for tool in "${tools[@]}"; do
    running=() clean=1
    selected=("${shards[@]}")
    [[ $tool == memcheck ]] && selected+=("${tiny_shards[@]}")
    finds_the_planted_fault "$tool" &
    running+=($!)
    for shard in "${selected[@]}"; do
        check "$tool" "$shard" &
        running+=($!)
    done
    for process in "${running[@]}"; do
        wait "$process" || clean=0
    done
    ((clean)) && echo "== $tool: nothing to report" || failed=1
done
exit $failed
