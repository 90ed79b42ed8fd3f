/** What a GPU's arithmetic is like, which decides which of the site's programs runs on it. */

import { readBuffer } from "./device.js";
import { SiteError } from "./errors.js";

const PACKED_DOT = "packed_4x8_integer_dot_product"; // language feature of WGSL
const VALUES = 3; // results of a case: fma, then a product and a sum that every GPU must round correctly

/**
 * Return the name of the program for a device. `isSoftware` says that a processor emulates the GPU; such a driver takes seconds
 * to compile what others compile at once.
 *
 * `cases` are `{source, buffers, groups, results, normal}`: a shader, the words in its buffers before, its workgroups, the right
 * words in the last buffer after it, and the number of cases without subnormal numbers, which come first.
 */
export async function chooseProgram(device, { isSoftware, languageFeatures }, cases) {
  const results = await runCases(device, cases);
  let isFused = true;
  for (let at = 0; at < VALUES * cases.normal; at += 1) {
    if (results[at] === cases.results[at]) continue;
    if (at % VALUES !== 0) {
      throw new SiteError("this GPU does not round float32 sums and products correctly; update its driver, or use edgedec itself");
    }
    isFused = false;
  }
  return `${isSoftware ? "compact" : isFused ? "native" : "exact"}-${languageFeatures?.has(PACKED_DOT) ? "packed" : "shifts"}`;
}

/** Return the words in the last buffer after the shader has run. */
async function runCases(device, cases) {
  const { STORAGE, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
  const words = cases.buffers.map((buffer) => Uint32Array.from(buffer));
  const buffers = words.map(({ byteLength }) => device.createBuffer({ size: byteLength, usage: STORAGE | COPY_SRC | COPY_DST }));
  words.forEach((data, at) => device.queue.writeBuffer(buffers[at], 0, data));
  const { byteLength } = words.at(-1);
  const staging = device.createBuffer({ size: byteLength, usage: MAP_READ | COPY_DST });
  const pipeline = await device.createComputePipelineAsync({
    layout: "auto",
    compute: { module: device.createShaderModule({ label: "arithmetic", code: cases.source }), entryPoint: "main" },
  });
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  const entries = buffers.map((buffer, binding) => ({ binding, resource: { buffer } }));
  pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
  pass.dispatchWorkgroups(cases.groups);
  pass.end();
  encoder.copyBufferToBuffer(buffers.at(-1), 0, staging, 0, byteLength);
  device.queue.submit([encoder.finish()]);
  const copy = new Uint32Array(await readBuffer(staging, byteLength));
  for (const buffer of [...buffers, staging]) buffer.destroy();
  return copy;
}
