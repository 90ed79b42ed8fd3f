/** The way from the files of a site to a session: small files and the GPU first, so that what cannot run fetches no weights. */

import { chooseProgram } from "./arithmetic.js";
import { findAdapter, isSoftware, openDevice } from "./device.js";
import { fetchFile, fetchJson, fetchManifest, fetchText } from "./download.js";
import { SiteError } from "./errors.js";
import { Executor } from "./executor.js";
import { checkProbes } from "./probes.js";
import { Session } from "./session.js";
import { ChatTemplate } from "./template.js";
import { Tokenizer } from "./text.js";

const MANIFEST = "site.json";
const VERSION = 1;

/** Return the manifest of the site at `base`. */
export async function fetchSite(base) {
  const site = await fetchManifest(base, MANIFEST);
  if (site.format !== "edgedec-site" || site.version !== VERSION) {
    throw new SiteError(`${MANIFEST} is not of a site of version ${VERSION}; export the model again`);
  }
  return site;
}

/**
 * Load the model of a site.
 *
 * `onStage(text)` is called with what is done now, `onBytes(done, total)` while weights are fetched. If loading fails or is
 * cancelled, the memory of the GPU is given back.
 */
export async function loadModel(base, site, plan, { navigator, signal, onStage, onBytes }) {
  const adapter = await findAdapter(navigator, true);
  const device = await openDevice(adapter, plan);
  try {
    onStage("Checking tokenizer and chat template");
    const tokenizer = new Tokenizer(await fetchJson(base, site.tokenizer, { signal }));
    const template = site.chat_template && new ChatTemplate(await fetchText(base, site.chat_template, { signal }), site.spellings);
    checkProbes(site.probes, tokenizer, template);
    onStage("Preparing the GPU");
    const cases = await fetchJson(base, site.arithmetic, { signal });
    const traits = { isSoftware: isSoftware(adapter), languageFeatures: navigator.gpu.wgslLanguageFeatures };
    const name = await chooseProgram(device, traits, cases);
    const program = await fetchJson(base, site.programs[name], { signal });
    const executor = await Executor.create(device, program);
    onStage("Fetching weights");
    await fetchWeights(base, site.weights, executor, signal, onBytes);
    onStage("Trying a known text");
    const session = new Session(executor, tokenizer, template, site);
    session.isExact = await writesKnownAnswer(session, site.known_answer, signal);
    signal?.throwIfAborted();
    return session;
  } catch (error) {
    device.destroy();
    throw error;
  }
}

/** Return true if the tokens after a known prompt are those of the CPU; null if the site has none. */
async function writesKnownAnswer(session, known, signal) {
  if (!known) return null;
  const { tokens } = await session.generate(known.prompt, { mostTokens: known.tokens.length, signal });
  return tokens.length === known.tokens.length && tokens.every((token, at) => token === known.tokens[at]);
}

/** Bring the pieces of the weights into the GPU's memory, one after another. */
async function fetchWeights(base, pieces, executor, signal, onBytes) {
  const total = pieces.reduce((sum, { bytes }) => sum + bytes, 0);
  const room = new Uint8Array(Math.max(...pieces.map(({ bytes }) => bytes)));
  let done = 0;
  let start = 0;
  for (const piece of pieces) {
    const options = { signal, room, onBytes: (count) => onBytes((done += count), total) };
    const content = await fetchFile(base, piece, options);
    executor.writeConstants(start, content);
    await executor.finished(); // the browser keeps a copy of the piece until then
    start += piece.bytes;
  }
}
