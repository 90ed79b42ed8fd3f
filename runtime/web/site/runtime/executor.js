/**
 * The executor of a program: buffers, pipelines and bind groups that are made once, and one submission for each pass.
 *
 * edgedec's runtime/gpu/program.py says what a program is and how it runs.
 */

import { lostDevice, readBuffer } from "./device.js";
import { SiteError } from "./errors.js";
import { Header } from "./header.js";

/** A program on a device. Make one with `Executor.create`. */
export class Executor {
  /** Make buffers and pipelines on a device; `constants` are filled later, by `writeConstants`. */
  static async create(device, program) {
    const executor = new Executor(device, program);
    await executor.#checked("memory for the model", "out-of-memory", () => executor.#makeBuffers());
    await executor.#makePipelines();
    await executor.#checked("the steps of the program", "validation", () => executor.#makeBindGroups());
    return executor;
  }

  constructor(device, program) {
    this.device = device;
    this.program = program;
    this.header = new Header(program.layout);
    this.failed = null; // the error that ends the use of the device
    this.whenLost = device.lost.then(({ reason, message }) => (this.failed = lostDevice(message || reason)));
    device.addEventListener("uncapturederror", ({ error }) => {
      this.failed ??= new SiteError(`this GPU refused a pass (${error.message}); its answers may be wrong, so reload the page`);
    });
  }

  /** Write bytes of the file of all constants, from one of its bytes on, into the buffers to which they belong. */
  writeConstants(start, bytes) {
    const { program, buffers, device } = this;
    for (const [name, offset] of Object.entries(program.constants)) {
      const index = Number(name);
      const from = Math.max(start, offset);
      const to = Math.min(start + bytes.length, offset + program.buffers[index].nbytes);
      if (from < to) device.queue.writeBuffer(buffers[index], from - offset, bytes, from - start, to - from);
    }
  }

  /**
   * Run a pass and return the likeliest token after each of its results, as Int32Array.
   *
   * `ids` are the rows, after `past` rows of the cache; `results` the rows whose next token is wanted.
   */
  async run(ids, past, results) {
    if (this.failed) throw this.failed;
    const { device, program, buffers } = this;
    device.queue.writeBuffer(buffers[program.head], 0, this.header.write(ids, past, results));
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    let pipeline = null;
    for (const step of this.steps) {
      if (step.when === "moves" || (step.when !== "pass" && !results.length)) continue;
      const [x, y, z] = step.groups.map((count) => workgroups(count, ids.length, results.length));
      if (!(x && y && z)) continue;
      if (step.pipeline !== pipeline) pass.setPipeline((pipeline = step.pipeline));
      pass.setBindGroup(0, step.bindGroup);
      pass.dispatchWorkgroups(x, y, z);
    }
    pass.end();
    const bytes = 4 * results.length * program.top_k;
    if (bytes) encoder.copyBufferToBuffer(buffers[program.top_ids], 0, this.staging, 0, bytes);
    device.queue.submit([encoder.finish()]);
    if (!bytes) return new Int32Array(0);
    const top = new Int32Array(await readBuffer(this.staging, bytes));
    if (this.failed) throw this.failed;
    return Int32Array.from(results, (_, row) => top[row * program.top_k]);
  }

  /** Wait until all passes so far have run. */
  async finished() {
    await Promise.race([this.device.queue.onSubmittedWorkDone(), this.whenLost]);
    if (this.failed) throw this.failed;
  }

  #makeBuffers() {
    const { device, program } = this;
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    this.buffers = program.buffers.map(({ name, nbytes }) => device.createBuffer({ label: name, size: nbytes, usage }));
    this.staging = device.createBuffer({
      label: "results for the page",
      size: 4 * program.results * program.top_k,
      usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
  }

  async #makePipelines() {
    const { device, program } = this;
    const layouts = new Map(); // by the accesses of the bindings
    this.layouts = program.kernels.map(({ bindings }) => {
      const accesses = bindings.map(({ access }) => access).join();
      if (!layouts.has(accesses)) layouts.set(accesses, device.createBindGroupLayout({ entries: bindings.map(entry) }));
      return layouts.get(accesses);
    });
    this.pipelines = await Promise.all(program.kernels.map((kernel, index) => this.#pipeline(kernel, this.layouts[index])));
  }

  async #pipeline({ name, source }, layout) {
    const { device } = this;
    const module = device.createShaderModule({ label: name, code: source });
    try {
      return await device.createComputePipelineAsync({
        label: name,
        layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module, entryPoint: "main" },
      });
    } catch (error) {
      const { messages } = await module.getCompilationInfo();
      const first = messages.find(({ type }) => type === "error");
      const where = first ? `line ${first.lineNum}: ${first.message}` : error.message;
      throw new SiteError(`this browser cannot use the shader ${name}: ${where}`, { cause: error });
    }
  }

  #makeBindGroups() {
    const { device, program, buffers, layouts, pipelines } = this;
    this.steps = program.steps.map((step) => ({
      when: step.when,
      groups: ["x", "y", "z"].map((axis) => program.kernels[step.kernel].groups[axis]),
      pipeline: pipelines[step.kernel],
      bindGroup: device.createBindGroup({
        label: step.name,
        layout: layouts[step.kernel],
        entries: step.buffers.map((index, binding) => ({ binding, resource: { buffer: buffers[index] } })),
      }),
    }));
  }

  /** Run a function, and throw what the device has against it. */
  async #checked(what, filter, run) {
    const { device } = this;
    device.pushErrorScope(filter);
    run();
    const error = await device.popErrorScope();
    if (error) throw new SiteError(`this GPU refuses ${what}: ${error.message}`);
  }
}

function entry({ access }, binding) {
  const type = access === "read" ? "read-only-storage" : "storage";
  return { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } };
}

/** Return the workgroups of one dimension in a pass of n rows and r results. */
function workgroups({ constant, rows, results, divisor }, n, r) {
  return Math.ceil((constant + rows * n + results * r) / divisor);
}
