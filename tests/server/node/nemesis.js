// A client of the nemesis (tests/nemesis/official.py): publishes and consumes while everything around it breaks, and writes
// what it saw as tests/nemesis/history.py says. Its only argument is a JSON object: who, folder, seed, life.
'use strict';

const fs = require('fs');
const path = require('path');
const {PubSub} = require('@google-cloud/pubsub');

const KEYS = 4;
const NUMBERS_OF_A_LIFE = 1000000;
const AT_ONCE = 20;
const SUCCESS = 'SUCCESS';
const INVALID = 'INVALID';

const life = JSON.parse(process.argv[2]);
const history = fs.openSync(path.join(life.folder, `${life.who}.jsonl`), 'a', 0o600);
const pubsub = new PubSub({projectId: 'seriatim'});
const topic = pubsub.topic('events', {messageOrdering: true, batching: {maxMilliseconds: 10}});
const numbers = Array(KEYS).fill(life.life * NUMBERS_OF_A_LIFE);
let leases = life.life * NUMBERS_OF_A_LIFE;
let underWay = 0;
let isStopping = false;

function record(what, fields) {
  const at = Number(process.hrtime.bigint()) / 1e9; // the machine's monotonic clock, which all processes share
  fs.writeSync(history, JSON.stringify({at, who: life.who, what, ...fields}) + '\n');
}

const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
const chance = probability => Math.random() < probability;

async function ack(message, seen) {
  record('ack', seen);
  if (chance(0.3)) return message.ack();
  // A message that was given back because its subscription is closing answers with an error code instead of throwing it.
  const answer = await message.ackWithResponse().catch(error => error.errorCode);
  if (answer === SUCCESS) record('acked', seen);
  if (answer === INVALID) record('unsure', seen); // the client may have asked more than once
}

async function handle(sub, message) {
  const seen = {sub, key: message.orderingKey, number: Number(message.data), lease: ++leases};
  record('delivered', {attempt: message.deliveryAttempt || 0, id: message.id, ...seen});
  await pause(chance(0.5) ? 0 : 20);
  if (chance(0.1) && sub !== 'graves') {
    record('nack', seen);
    message.nack();
  } else {
    await ack(message, seen);
  }
  record('returned', seen);
}

async function publishOne() {
  const which = Math.floor(Math.random() * KEYS);
  const orderingKey = `${life.who}/${which}`;
  const message = {key: orderingKey, number: numbers[which]++};
  record('publish', message);
  underWay++;
  try {
    record('published', {...message, id: await topic.publishMessage({data: Buffer.from(`${message.number}`), orderingKey})});
  } catch (error) {
    topic.resumePublishing(orderingKey);
  }
  underWay--;
}

// Write down when this process got no processor for a while: what it does then, it does late.
async function watch() {
  for (;;) {
    const begun = process.hrtime.bigint();
    await pause(200);
    const stalled = Number(process.hrtime.bigint() - begun) / 1e9;
    if (stalled > 1) record('stalled', {body: stalled.toFixed(3)});
  }
}

// The Python clients create the subscriptions, and what is published before that is not for them.
async function untilCreated(subscription) {
  while (!(await subscription.exists())[0]) await pause(50);
}

async function main() {
  const subscriptions = ['strict', 'limited', 'graves'].map(name => pubsub.subscription(name));
  const leave = () => process.exit(0); // the next life tries again
  process.once('SIGTERM', leave);
  await Promise.all(subscriptions.map(untilCreated)).catch(leave);
  process.off('SIGTERM', leave);
  process.on('SIGTERM', () => (isStopping = true));
  for (const subscription of subscriptions) {
    const name = subscription.name.split('/').pop();
    subscription.on('message', message => handle(name, message));
    subscription.on('error', () => (isStopping = true)); // the server was away: the next life tries again
  }
  watch();
  while (!isStopping) {
    if (underWay < AT_ONCE) publishOne();
    await pause(chance(0.5) ? 1 : 30);
  }
  await Promise.race([Promise.all(subscriptions.map(one => one.close())), pause(5000)]);
  process.exit(0);
}

main();
