// The API key, if the server requires one. It is kept for this tab only and sent to the page's own
// server only.
const kept = "millrace.key";
let key = "";

try {
  key = sessionStorage.getItem(kept) ?? "";
} catch {
  // no storage: the key lasts until the page is closed
}

export const storedKey = () => key;

export function keepKey(value) {
  key = value.trim();
  try {
    if (key) sessionStorage.setItem(kept, key);
    else sessionStorage.removeItem(kept);
  } catch {
    // as above
  }
}

// keyed is fetch with the API key.
export function keyed(path, options = {}) {
  const headers = key ? { ...options.headers, Authorization: `Bearer ${key}` } : options.headers;
  return fetch(path, { ...options, headers });
}
