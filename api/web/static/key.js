// The API key, where the server asks for one. It is kept for this tab alone, and goes
// to no other server than the page's own.
const kept = "millrace.key";
let key = "";

try {
  key = sessionStorage.getItem(kept) ?? "";
} catch {
  // no storage: the key lasts as long as the page
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

// keyed is fetch with the key.
export function keyed(path, options = {}) {
  const headers = key ? { ...options.headers, Authorization: `Bearer ${key}` } : options.headers;
  return fetch(path, { ...options, headers });
}
