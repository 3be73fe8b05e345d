// A stream's segments as rectangles of keys and time, each with its rate; and where segments were split and merged.

export function spansOf(segments, loads, now) {
  const rates = new Map((loads ?? []).map((load) => [load.segment_id, load.bytes_per_s[1]]));
  return segments.filter((one) => !one.rolled).map((one) => {
    const to = one.replaced_ms ?? now;
    const lasted = Math.max(to - one.created_ms, 1);
    const gone = one.end_offset ? one.start_offset / one.end_offset : 0;
    return {
      id: one.segment_id, low: one.low, high: one.high, from: one.created_ms, to, isOpen: one.replaced_ms === null,
      gone: one.created_ms + gone * lasted, bytes: one.end_offset,
      rate: rates.get(one.segment_id) ?? (one.end_offset * 1000) / lasted,
    };
  });
}

// The same by the events' own time: how many bytes each segment has in each step of it.
export function stepsOf(segments, { steps, head, tail }) {
  const ranges = new Map(segments.map((one) => [one.segment_id, one]));
  return steps.filter((one) => ranges.has(one.segment)).flatMap(({ segment, bytes }) => {
    const { low, high } = ranges.get(segment);
    const lasts = Math.max(tail.time - head.time, 1) / bytes.length;
    return bytes.map((size, i) => ({
      id: segment, low, high, from: head.time + i * lasts, to: head.time + (i + 1) * lasts, isStep: true, gone: -Infinity, bytes: size, rate: (size * 1000) / lasts,
    })).filter((one) => one.bytes);
  });
}

// [{ms, kind}]: when segments were replaced by more than there had been, or by fewer
export function turns(spans) {
  const found = new Map();
  const at = (ms) => found.get(ms) ?? found.set(ms, { ms, added: 0, removed: 0 }).get(ms);
  for (const one of spans) {
    if (one.isStep) continue;
    at(one.from).added += 1;
    if (!one.isOpen) at(one.to).removed += 1;
  }
  return [...found.values()].filter((one) => one.added && one.removed && one.added !== one.removed)
    .map((one) => ({ ms: one.ms, kind: one.added > one.removed ? "split" : "merge" }));
}

// The rate of the whole stream over time, as steps: [{ms, rate}]
export function profile(spans) {
  const changes = [];
  for (const one of spans) {
    if (!(one.rate > 0)) continue;
    changes.push([one.from, one.rate], [one.to, -one.rate]);
  }
  changes.sort((a, b) => a[0] - b[0]);
  let rate = 0;
  return changes.map(([ms, change]) => ({ ms, rate: (rate += change) }));
}
