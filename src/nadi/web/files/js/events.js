// Events with listeners.

export function event() {
  const listeners = new Set();
  return {
    emit: (...values) => listeners.forEach((listener) => listener(...values)),
    on: (listener, signal) => {
      listeners.add(listener);
      signal?.addEventListener("abort", () => listeners.delete(listener));
    },
  };
}
