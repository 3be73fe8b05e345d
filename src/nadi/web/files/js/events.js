// Somebody tells, others listen.

export function event() {
  const listeners = new Set();
  return {
    tell: (...values) => listeners.forEach((listener) => listener(...values)),
    on: (listener, signal) => {
      listeners.add(listener);
      signal?.addEventListener("abort", () => listeners.delete(listener));
    },
  };
}
