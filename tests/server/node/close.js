// Acks a number of messages, and closes the subscription at once: the client sends its acks after it has ended its streams.
'use strict';

const {PubSub} = require('@google-cloud/pubsub');

const pubsub = new PubSub({projectId: 'demo'});
const subscription = pubsub.subscription('work');
const wanted = Number(process.argv[2]);
let acked = 0;

subscription.on('message', async message => {
  message.ack();
  if (++acked !== wanted) return;
  await subscription.close();
  await pubsub.close();
  process.stdout.write(`${acked}\n`);
  process.exit(0);
});
