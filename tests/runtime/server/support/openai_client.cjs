// Make the ordinary calls of OpenAI's client for JavaScript to a server, and print one JSON object: call -> result.
// Usage: node openai_client.cjs BASE_URL
'use strict';
const OpenAI = require('openai').default;
const { makeParseableResponseFormat } = require('openai/lib/parser');

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'user', content: 'Tell me a story about a cat.' }];
const chat = { model: 'any', messages, max_completion_tokens: 40, temperature: 0, stop: '.' };
const schema = {
  type: 'object',
  properties: { animal: { enum: ['cat', 'dog'] }, age: { type: 'integer', minimum: 1, maximum: 9 } },
  required: ['animal', 'age'],
  additionalProperties: false,
};
const note = { name: 'note', description: 'Note an animal.', parameters: schema };

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, message: error.message };
  }
  return null;
}

const calls = {
  models: async () => (await collect(client.models.list())).map((model) => model.id),
  model: async () => (await client.models.retrieve('a model')).id,
  missing_model: () => failure(client.models.retrieve('gpt-5')),
  chat: () => client.chat.completions.create(chat),
  chunks: async () =>
    collect(await client.chat.completions.create({ ...chat, stream: true, stream_options: { include_usage: true } })),
  helper: async () => {
    const stream = client.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
    const deltas = [];
    stream.on('content', (delta) => deltas.push(delta));
    return { deltas, content: await stream.finalContent(), usage: await stream.totalUsage() };
  },
  options: () =>
    client.chat.completions.create({
      ...chat,
      temperature: 0.8,
      seed: 3,
      n: 2,
      top_p: 0.9,
      presence_penalty: 0.5,
      frequency_penalty: 0.5,
      logit_bias: { 5: -100 },
      logprobs: true,
      top_logprobs: 2,
      user: 'somebody',
    }),
  parsed: async () => {
    const format = { type: 'json_schema', json_schema: { name: 'pet', schema, strict: true } };
    const response_format = makeParseableResponseFormat(format, JSON.parse);
    return (await client.chat.completions.parse({ model: 'any', messages, seed: 1, response_format })).choices[0].message;
  },
  tool: () =>
    client.chat.completions.create({
      model: 'any',
      messages,
      seed: 3,
      tools: [{ type: 'function', function: note }],
      tool_choice: 'required',
      parallel_tool_calls: false,
    }),
  tool_stream: async () => {
    const stream = client.chat.completions.stream({
      model: 'any',
      messages,
      seed: 3,
      tools: [{ type: 'function', function: note }],
      tool_choice: 'required',
      parallel_tool_calls: false,
    });
    return (await stream.finalChatCompletion()).choices[0];
  },
  run_tools: async () => {
    const received = [];
    const tool = { ...note, parse: JSON.parse, function: (pet) => (received.push(pet), 'noted') };
    const runner = client.chat.completions.runTools({
      model: 'any',
      messages,
      seed: 3,
      tools: [{ type: 'function', function: tool }],
      tool_choice: { type: 'function', function: { name: 'note' } },
      parallel_tool_calls: false,
    });
    await runner.done();
    return { received, roles: runner.messages.map((message) => message.role) };
  },
  completion: () =>
    client.completions.create({ model: 'any', prompt: 'Once upon a time', max_tokens: 5, temperature: 0, echo: true, logprobs: 1 }),
  completion_chunks: async () =>
    collect(
      await client.completions.create({ model: 'any', prompt: 'Once upon a time', max_tokens: 5, temperature: 0, stream: true }),
    ),
  abort: async () => {
    const stream = await client.chat.completions.create({ ...chat, max_completion_tokens: 400, stop: null, logit_bias: { 1: -100 }, stream: true });
    let chunks = 0;
    for await (const chunk of stream) {
      if (chunk.choices[0].delta.content && ++chunks === 3) break; // leaving the loop closes the connection
    }
    return chunks;
  },
  abort_signal: async () => {
    const controller = new AbortController();
    const request = { ...chat, max_completion_tokens: 400, stop: null, logit_bias: { 1: -100 } };
    const answer = client.chat.completions.create(request, { signal: controller.signal });
    setTimeout(() => controller.abort(), 100);
    return failure(answer);
  },
  overflow: () => failure(client.completions.create({ model: 'any', prompt: Array(600).fill(5) })),
  unknown_field: () => failure(client.chat.completions.create({ ...chat, colour: 1 })),
  embeddings: () => failure(client.embeddings.create({ model: 'any', input: 'x' })),
};

async function main() {
  const results = {};
  for (const [name, call] of Object.entries(calls)) {
    try {
      results[name] = await call();
    } catch (error) {
      results[name] = { failed: `${error.stack}` };
    }
  }
  process.stdout.write(JSON.stringify(results));
}

main();
