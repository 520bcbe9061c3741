// A subscriber process: prints when it got which message, and acks it after a while. Ends when its input does.
'use strict';

const {PubSub} = require('@google-cloud/pubsub');

const pubsub = new PubSub({projectId: 'demo'});
const subscription = pubsub.subscription('work', {batching: {maxMilliseconds: 10}});

subscription.on('message', message => {
  process.stdout.write(`${process.hrtime.bigint()} ${message.orderingKey} ${message.data}\n`);
  setTimeout(() => message.ack(), 2);
});
subscription.on('error', error => process.stderr.write(`${error}\n`));
process.stdout.write('ready\n');
process.stdin.on('end', async () => {
  await subscription.close();
  await pubsub.close();
  process.exit(0);
});
process.stdin.resume();
