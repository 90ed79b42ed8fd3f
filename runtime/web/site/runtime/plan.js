/** The plan: what the model needs, compared with the GPU and with the budget before anything large is fetched. */

const MEBIBYTE = 2 ** 20;

/** Return bytes as a text in MiB. */
export function mebibytes(bytes) {
  return `${(bytes / MEBIBYTE).toFixed(1)} MiB`;
}

/** Return the files that a browser fetches: of the programs it needs one. */
function fetched({ tokenizer, chat_template: template, arithmetic, programs, weights }) {
  const largest = Object.values(programs).reduce((one, other) => (one.bytes < other.bytes ? other : one));
  return [tokenizer, template, arithmetic, largest, ...weights].filter(Boolean);
}

/**
 * Return the plan of a site.
 *
 * Members: `downloadBytes`; `items`, bytes of GPU memory by what they are for; `gpuBytes`, their sum; `requiredLimits`, the
 * limits of WebGPU that the model needs.
 */
export function makePlan(site) {
  const { items, limits } = site.memory;
  return {
    downloadBytes: fetched(site).reduce((sum, { bytes }) => sum + bytes, 0),
    items,
    gpuBytes: Object.values(items).reduce((sum, bytes) => sum + bytes, 0),
    requiredLimits: limits,
  };
}

/** Return why a plan cannot run, a sentence each: limits of the adapter, and the budget in bytes, which may be null. */
export function refusals(plan, adapterLimits, budgetBytes) {
  const reasons = [];
  for (const [name, needed] of Object.entries(plan.requiredLimits)) {
    const offered = adapterLimits[name] ?? 0;
    if (needed > offered) reasons.push(`the model needs ${name} ${needed}, and this GPU offers ${offered}`);
  }
  if (budgetBytes !== null && plan.gpuBytes > budgetBytes) {
    reasons.push(
      `the model takes ${mebibytes(plan.gpuBytes)} of GPU memory, more than the budget of ${mebibytes(budgetBytes)}; raise ` +
        "the budget, or export the model with a smaller --ctx-size or --kv-bits 8",
    );
  }
  return reasons;
}
