// The acceptance criteria of documents 000 (message ordering) and 001 (publisher), through the official Node client.
// Every scenario has topics of its own and returns what a test looks at. One JSON object a line: {"name": …, "result": …}.
'use strict';

const {PubSub, v1} = require('@google-cloud/pubsub');

const ORDERED = {enableMessageOrdering: true};
const pubsub = new PubSub({projectId: 'node'});

async function newTopic(name) {
  const [topic] = await pubsub.createTopic(name);
  return topic;
}

async function orderedPair(name, options = ORDERED) {
  const topic = await newTopic(name);
  topic.setPublishOptions({messageOrdering: true});
  const [subscription] = await topic.createSubscription(`${name}-sub`, options);
  return [topic, subscription];
}

function sendAll(topic, texts, orderingKey) {
  return Promise.all(texts.map(text => topic.publishMessage({data: Buffer.from(text), orderingKey})));
}

// Collects what `handle` sees until there are `count` messages; an error of the stream ends it.
function collect(subscription, count, handle) {
  const seen = [];
  return new Promise((resolve, reject) => {
    subscription.on('error', reject);
    subscription.on('message', message => {
      seen.push(message.data.toString());
      handle(message, seen);
      if (seen.length === count) resolve(seen);
    });
  }).finally(() => subscription.close());
}

const ack = message => message.ack();
const range = (count, text) => Array.from({length: count}, (_, i) => `${text}${i}`);
const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));

async function mostAtOnce(name, send, count) {
  const [topic, subscription] = await orderedPair(name);
  let running = 0;
  let most = 0;
  const done = collect(subscription, count, async message => {
    most = Math.max(most, ++running);
    await pause(50);
    running--;
    message.ack();
  });
  await send(topic);
  await done;
  return most;
}

async function publishWith(name, options, count, orderingKeyOf = () => undefined) {
  const topic = await newTopic(name);
  topic.setPublishOptions(options);
  const start = Date.now();
  const ids = await Promise.all(
    range(count, 'message ').map((text, i) =>
      topic.publishMessage({data: Buffer.from(text), orderingKey: orderingKeyOf(i)})
    )
  );
  return {ids, milliseconds: Date.now() - start};
}

const scenarios = {
  async ordering_001_key_is_accepted() {
    const [topic] = await orderedPair('o001');
    return await topic.publishMessage({data: Buffer.from('event-1'), orderingKey: 'user-123'});
  },

  async ordering_002_same_key_in_order() {
    const [topic, subscription] = await orderedPair('o002');
    const done = collect(subscription, 3, ack);
    await sendAll(topic, ['first', 'second', 'third'], 'user-123');
    return await done;
  },

  ordering_003_one_at_a_time() {
    return mostAtOnce('o003', topic => sendAll(topic, range(5, 'msg-'), 'user-123'), 5);
  },

  ordering_004_different_keys_at_once() {
    return mostAtOnce('o004', topic => Promise.all(range(3, 'user-').map(key => sendAll(topic, ['m'], key))), 3);
  },

  async ordering_005_expired_comes_again_first() {
    const [topic, subscription] = await orderedPair('o005', {...ORDERED, ackDeadlineSeconds: 1});
    await sendAll(topic, ['first', 'second'], 'user-123');
    const client = new v1.SubscriberClient({...pubsub.options, projectId: 'node'});
    const seen = [];
    for (let pull = 0; pull < 3; pull++) {
      const [{receivedMessages}] = await client.pull({subscription: subscription.name, maxMessages: 10});
      seen.push(...receivedMessages.map(received => received.message.data.toString()));
      if (pull > 0) {
        const ackIds = receivedMessages.map(received => received.ackId);
        await client.acknowledge({subscription: subscription.name, ackIds});
      }
    }
    await client.close();
    return seen;
  },

  async ordering_006_keyless_is_not_blocked() {
    const [topic, subscription] = await orderedPair('o006');
    const done = collect(subscription, 2, message => message.orderingKey || message.ack());
    await sendAll(topic, ['blocked', 'behind'], 'user-123');
    await topic.publishMessage({data: Buffer.from('unordered')});
    return (await done).sort();
  },

  async ordering_007_each_subscription_has_its_order() {
    const [topic, one] = await orderedPair('o007');
    const [two] = await topic.createSubscription('o007-two', ORDERED);
    const done = Promise.all([collect(one, 2, ack), collect(two, 2, ack)]);
    await sendAll(topic, ['first', 'second'], 'user-123');
    return await done;
  },

  async ordering_008_long_key_is_refused() {
    const [topic] = await orderedPair('o008');
    try {
      await topic.publishMessage({data: Buffer.from('test'), orderingKey: 'x'.repeat(1025)});
    } catch (error) {
      return [error.code, error.details];
    }
    return 'it was published';
  },

  async ordering_009_key_without_enabling() {
    const topic = await newTopic('o009');
    return await topic.publishMessage({data: Buffer.from('test'), orderingKey: 'user-123'});
  },

  async ordering_010_batches_with_keys() {
    const options = {messageOrdering: true, batching: {maxMessages: 10, maxMilliseconds: 50}};
    return await publishWith('o010', options, 20, i => `user-${i % 5}`);
  },

  // What the well-known emulator gets wrong: 0 1 2 3 4 5 6 7 8 9 3.
  async nacked_comes_again_first() {
    const [topic, subscription] = await orderedPair('nacked');
    const done = collect(subscription, 11, (message, seen) =>
      message.data.toString() === '3' && seen.filter(one => one === '3').length === 1 ? message.nack() : message.ack()
    );
    await sendAll(topic, range(10, ''), 'k');
    return await done;
  },

  async dead_letter_unblocks_its_key() {
    const graves = await newTopic('graves');
    const [grave] = await graves.createSubscription('graves-sub');
    const deadLetterPolicy = {deadLetterTopic: graves.name, maxDeliveryAttempts: 5};
    const [topic, subscription] = await orderedPair('dead', {...ORDERED, deadLetterPolicy});
    const done = Promise.all([
      collect(subscription, 7, message => (message.data.toString() === 'poison' ? message.nack() : message.ack())),
      collect(grave, 1, ack),
    ]);
    await sendAll(topic, ['before', 'poison', 'after'], 'k');
    return await done;
  },

  publisher_001_default_batches: () => publishWith('p001', {}, 50),
  publisher_002_time: () => publishWith('p002', {batching: {maxMessages: 1000, maxMilliseconds: 20}}, 5),
  publisher_003_count: () => publishWith('p003', {batching: {maxMessages: 10, maxMilliseconds: 60000}}, 10),
  publisher_004_size: () => publishWith('p004', {batching: {maxMessages: 1000, maxMilliseconds: 100, maxBytes: 20}}, 3),
  publisher_008_no_batches: () => publishWith('p008', {batching: {maxMessages: 1, maxMilliseconds: 0, maxBytes: 1}}, 2),
  publisher_009_unique_ids: () => publishWith('p009', {}, 100),

  async publisher_005_flush() {
    const topic = await newTopic('p005');
    topic.setPublishOptions({batching: {maxMessages: 1000, maxMilliseconds: 60000}});
    const published = ['test1', 'test2'].map(text => topic.publishMessage({data: Buffer.from(text)}));
    await topic.flush();
    return await Promise.all(published);
  },

  async publisher_006_batches_by_key() {
    const [topic, subscription] = await orderedPair('p006');
    topic.setPublishOptions({messageOrdering: true, batching: {maxMessages: 100, maxMilliseconds: 50}});
    const done = collect(subscription, 3, ack);
    const sent = [['user-1', 'a1'], ['user-2', 'b1'], ['user-1', 'a2']];
    await Promise.all(sent.map(([orderingKey, text]) => topic.publishMessage({data: Buffer.from(text), orderingKey})));
    return (await done).filter(text => text.startsWith('a'));
  },

  async publisher_007_flow_control() {
    const topic = await newTopic('p007');
    topic.setPublishOptions({
      flowControlOptions: {maxOutstandingMessages: 10},
      batching: {maxMessages: 5, maxMilliseconds: 100},
    });
    const publisher = topic.flowControlled();
    const ids = [];
    for (const text of range(15, 'message ')) {
      const waiting = publisher.publish({data: Buffer.from(text)});
      if (waiting) await waiting;
    }
    ids.push(...(await publisher.all()));
    return ids.length;
  },

  async publisher_010_empty_flush() {
    const topic = await newTopic('p010');
    await topic.flush();
    return 'done';
  },

  async message_too_large() {
    const topic = await newTopic('large');
    try {
      await topic.publishMessage({data: Buffer.alloc(10 * 1024 * 1024 + 1)});
    } catch (error) {
      return [error.code, error.details];
    }
    return 'it was published';
  },

  async exactly_once() {
    const topic = await newTopic('once');
    const [subscription] = await topic.createSubscription('once-sub', {enableExactlyOnceDelivery: true});
    // Not with `collect`: a subscription that is closed gives back what is not acked yet.
    const answer = new Promise((resolve, reject) => {
      subscription.on('message', message => message.ackWithResponse().then(resolve, reject));
    }).finally(() => subscription.close());
    await sendAll(topic, ['only']);
    return await answer;
  },
};

async function main() {
  await Promise.all(
    Object.entries(scenarios).map(async ([name, scenario]) => {
      const result = await scenario().catch(error => `${error}`);
      process.stdout.write(`${JSON.stringify({name, result})}\n`);
    })
  );
  await pubsub.close();
}

main();
