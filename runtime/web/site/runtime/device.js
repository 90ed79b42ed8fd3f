/** The browser's GPU: what it offers, and the device that the model needs. */

import { SiteError } from "./errors.js";

/** Return the adapter and its facts, or throw an error that says what is missing. */
export async function findAdapter(navigator, isSecure) {
  if (!navigator.gpu && !isSecure) {
    throw new SiteError(
      "this address gives pages no WebGPU: browsers offer it over https and on this machine (localhost, 127.0.0.1) only",
    );
  }
  if (!navigator.gpu) {
    throw new SiteError(
      "this browser has no WebGPU, with which the model runs; use a current Chrome, Edge, Firefox or Safari, or edgedec itself",
    );
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) {
    throw new SiteError(
      "this browser has WebGPU, but offers no GPU: it may be switched off in the settings, or its driver is blocked",
    );
  }
  return adapter;
}

/** Return what an adapter calls itself, marked if a processor emulates it. */
export function adapterName(adapter) {
  const { vendor, architecture, description } = adapter.info ?? {};
  const name = [vendor, architecture, description].filter(Boolean).join(" ") || "a GPU without a name";
  return isSoftware(adapter) ? `${name} (emulated by the processor, and slow)` : name;
}

/** Return true if a processor emulates the GPU. */
export function isSoftware({ info, isFallbackAdapter }) {
  return Boolean(info?.isFallbackAdapter ?? isFallbackAdapter) || info?.architecture === "swiftshader";
}

/** Return the first bytes of a buffer that can be mapped, as soon as the passes before have run. */
export async function readBuffer(buffer, bytes) {
  try {
    await buffer.mapAsync(GPUMapMode.READ, 0, bytes);
  } catch (error) {
    throw lostDevice(error.message, error); // a browser calls it an AbortError, as if the user had ended something
  }
  const copy = buffer.getMappedRange(0, bytes).slice(0);
  buffer.unmap();
  return copy;
}

/** Return the error of a device that is gone. */
export function lostDevice(reason, cause) {
  return new SiteError(`the GPU was lost (${reason}); reload the page to load the model again`, { cause });
}

/** Return a device that can hold the largest buffer of a plan. */
export async function openDevice(adapter, plan) {
  try {
    return await adapter.requestDevice({ requiredLimits: plan.requiredLimits });
  } catch (error) {
    throw new SiteError(`the GPU gives no device (${error.message}); close other pages that use it, and load again`, {
      cause: error,
    });
  }
}
