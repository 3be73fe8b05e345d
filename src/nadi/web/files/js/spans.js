// A stream's segments as rectangles of keys and time with their rates; and the times of splits and merges.

export function spansOf(segments, loads, now) {
  const rates = new Map((loads ?? []).map((load) => [load.segment_id, load.bytes_per_s[1]]));
  return segments.filter((item) => !item.rolled).map((item) => {
    const to = item.replaced_ms ?? now;
    const lasted = Math.max(to - item.created_ms, 1);
    const gone = item.end_offset ? item.start_offset / item.end_offset : 0;
    return {
      id: item.segment_id, low: item.low, high: item.high, from: item.created_ms, to, isOpen: item.replaced_ms === null,
      gone: item.created_ms + gone * lasted, bytes: item.end_offset,
      rate: rates.get(item.segment_id) ?? (item.end_offset * 1000) / lasted,
    };
  });
}

// The same by event time, with the bytes of each segment in each step.
export function stepsOf(segments, { steps, head, tail }) {
  const ranges = new Map(segments.map((item) => [item.segment_id, item]));
  return steps.filter((item) => ranges.has(item.segment)).flatMap(({ segment, bytes }) => {
    const { low, high } = ranges.get(segment);
    const lasts = Math.max(tail.time - head.time, 1) / bytes.length;
    return bytes.map((size, i) => ({
      id: segment, low, high, from: head.time + i * lasts, to: head.time + (i + 1) * lasts, isStep: true, gone: -Infinity, bytes: size, rate: (size * 1000) / lasts,
    })).filter((item) => item.bytes);
  });
}

// [{ms, kind}]: when segments were split or merged
export function scalings(spans) {
  const times = new Map();
  const at = (ms) => times.get(ms) ?? times.set(ms, { ms, added: 0, removed: 0 }).get(ms);
  for (const item of spans) {
    if (item.isStep) continue;
    at(item.from).added += 1;
    if (!item.isOpen) at(item.to).removed += 1;
  }
  return [...times.values()].filter((item) => item.added && item.removed && item.added !== item.removed)
    .map((item) => ({ ms: item.ms, kind: item.added > item.removed ? "split" : "merge" }));
}
