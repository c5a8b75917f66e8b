#!/usr/bin/env bash
# What one GPU does for six sites: steps captured as CUDA graphs beside eager ones, and many trainings at a time.
# one_gpu.sh OUT [SIZE]     SIZE: side of generated images, 128; a small one tries the script out on a CPU
# STEPS: of a site and round, 40. The same command goes on where it was stopped.
set -euo pipefail
out=$1 size=${2:-128}
mkdir -p "$out"

echo "== the same bits, captured and eager: expected are no lines of differences"
[ -d "$out/sites" ] || fedmerit prepare synthetic-prostate --out "$out/sites" --size "$size"
for capture in false true; do
  [ -f "$out/bits-$capture/closing.json" ] || fedmerit run --method fedavg --sites "$out/sites" --rounds 3 --seed 0 \
    --engine local --set "capture=$capture" --out "$out/bits-$capture"
done
numbers() { cut -d, -f2- "$out/bits-$1/results.csv" | grep -v seconds; }  # all but the run's name and times
diff <(numbers false) <(numbers true)

echo "== seconds of a round, and of bare steps on the pooled images"
for turn in 1 2; do
  for setting in "width=8 batch_size=2" "width=8 batch_size=16" "width=32 batch_size=2"; do
    for capture in false true; do
      read -r width batch <<< "$setting"
      fedmerit lab bench methods --out "$out/speed-$turn-$width-$batch-$capture" --size "$size" --threads 6 --rounds 4 \
        --methods steps,pooled,cffl,fedci --repetitions 3 --set "steps=${STEPS:-40}" --set "$width" --set "$batch" --set "capture=$capture"
    done
  done
done

echo "== 15 coalitions of four hospitals in five folds; real ones: POOL=SITES, prepared with --folds 5"
if [ -z "${POOL:-}" ] && [ ! -d "$out/four" ]; then
  fedmerit prepare synthetic-prostate --out "$out/six" --size "$size" --folds 5
  mkdir "$out/part"
  for site in $(ls "$out/six" | grep -v overview | head -4); do cp -r "$out/six/$site" "$out/part"; done
  mv "$out/part" "$out/four"
fi
time fedmerit lab bench values --out "$out/values" --pool "${POOL:-$out/four}" --scenarios asis --folds --seeds 0 \
  --estimators local_only --set capture=true
