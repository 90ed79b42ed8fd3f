/** Files of the site, each checked against its size and its SHA-256. Nothing is fetched from anywhere else. */

import { SiteError } from "./errors.js";

const COPY_AGAIN = "copy the folder of the site again";

/** Return a JSON file of the site that has no hash, because it holds the hashes of all others. */
export async function fetchManifest(base, name) {
  const response = await request(new URL(name, base), name, { cache: "no-store" }); // an older one names other files
  try {
    return JSON.parse(await response.text());
  } catch (error) {
    throw new SiteError(`${name} is damaged (${error.message}); ${COPY_AGAIN}`, { cause: error });
  }
}

/** Return the value in a JSON file `{name, bytes, sha256}`. */
export async function fetchJson(base, file, options) {
  return JSON.parse(await fetchText(base, file, options));
}

/** Return the text of a file `{name, bytes, sha256}`. */
export async function fetchText(base, file, options) {
  return new TextDecoder().decode(await fetchFile(base, file, options));
}

/**
 * Return the bytes of a file `{name, bytes, sha256}`.
 *
 * The hash is in the address, so that a browser that kept a file of this name from an earlier export asks for this one.
 * `onBytes(count)` is called with the number of bytes that have come since the last call. `room` is where they are put, for
 * callers that are done with one file before the next.
 */
export async function fetchFile(base, { name, bytes, sha256 }, { signal, onBytes = () => {}, room = new Uint8Array(bytes) } = {}) {
  const response = await request(new URL(`${name}?sha256=${sha256}`, base), name, { signal });
  const content = room.subarray(0, bytes);
  const reader = response.body.getReader();
  let length = 0;
  for (;;) {
    const { value, done } = await read(reader, name, length, bytes);
    if (done) break;
    if (length + value.length > bytes) {
      await reader.cancel();
      throw new SiteError(`${name} is damaged (it has more than ${bytes} bytes); ${COPY_AGAIN}`);
    }
    content.set(value, length);
    length += value.length;
    onBytes(value.length);
  }
  if (length < bytes) throw new SiteError(`${name} is damaged (${length} of ${bytes} bytes); ${COPY_AGAIN}`);
  const hash = hexadecimal(await crypto.subtle.digest("SHA-256", content));
  if (hash !== sha256) throw new SiteError(`${name} is damaged (its SHA-256 is ${hash}, not ${sha256}); ${COPY_AGAIN}`);
  return content;
}

async function read(reader, name, length, bytes) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new SiteError(`${name}: the connection ended after ${length} of ${bytes} bytes; load the model again`, {
      cause: error,
    });
  }
}

async function request(address, name, options) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new SiteError(`${name}: the server does not answer (${error.message}); load the model again`, { cause: error });
  }
  if (!response.ok) throw new SiteError(`${name} is missing (the server says ${response.status}); ${COPY_AGAIN}`);
  return response;
}

function hexadecimal(buffer) {
  return Array.from(new Uint8Array(buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
