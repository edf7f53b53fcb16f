// What the official Node client does with a Datastore: reads, writes,
// transactions, queries. Any surprise is an exception.
const assert = require('node:assert');
const {Datastore, PropertyFilter, and, or} = require('@google-cloud/datastore');

async function main() {
  const db = new Datastore({projectId: 'node'});
  const key = name => db.key(['Book', name]);

  await db.save([
    {key: key('a'), data: {author: 'Ann', year: 1990, tags: ['x', 'y'], when: new Date(1e12)}},
    {key: key('b'), data: {author: 'Bob', year: 1980}},
    {key: key('c'), data: [{name: 'author', value: 'Ann'}, {name: 'year', value: 2000}, {name: 'blurb', value: 'z'.repeat(2000), excludeFromIndexes: true}]},
  ]);
  const [a] = await db.get(key('a'));
  assert.strictEqual(a.author, 'Ann');
  assert.deepStrictEqual(a.tags, ['x', 'y']);
  assert.strictEqual(a.when.getTime(), 1e12);
  assert.strictEqual((await db.get(key('none')))[0], undefined);

  const [[id]] = [await db.allocateIds(db.key(['Book']), 1)];
  assert.ok(Number(id[0].id) > 0);
  await assert.rejects(db.insert({key: key('a'), data: {}}), {code: 6});
  await assert.rejects(db.update({key: key('none'), data: {}}), {code: 5});

  const names = async query => (await db.runQuery(query))[0].map(e => e[db.KEY].name);
  assert.deepStrictEqual(await names(db.createQuery('Book').filter(new PropertyFilter('author', '=', 'Ann')).order('year', {descending: true})), ['c', 'a']);
  assert.deepStrictEqual(await names(db.createQuery('Book').filter(or([new PropertyFilter('year', '=', 1980), new PropertyFilter('year', '=', 2000)]))), ['b', 'c']);
  assert.deepStrictEqual(await names(db.createQuery('Book').filter(and([new PropertyFilter('author', '=', 'Ann'), new PropertyFilter('tags', '=', 'y')]))), ['a']);
  const [first, info] = await db.runQuery(db.createQuery('Book').limit(2));
  assert.strictEqual(first.length, 2);
  assert.deepStrictEqual(await names(db.createQuery('Book').start(info.endCursor)), ['c']);
  const [keys] = await db.runQuery(db.createQuery('Book').select('__key__'));
  assert.strictEqual(keys.length, 3);
  const [projected] = await db.runQuery(db.createQuery('Book').select('year').order('year'));
  assert.deepStrictEqual(projected.map(e => e.year), [1980, 1990, 2000]);
  const [[{count}]] = await db.runAggregationQuery(db.createAggregationQuery(db.createQuery('Book')).count('count'));
  assert.strictEqual(Number(count), 3);

  const tx = db.transaction();
  await tx.run();
  const [b] = await tx.get(key('b'));
  b.year += 1;
  tx.save({key: key('b'), data: b});
  await tx.commit();
  assert.strictEqual((await db.get(key('b')))[0].year, 1981);

  const [one, two] = [db.transaction(), db.transaction()];
  for (const t of [one, two]) {
    await t.run();
    const [entity] = await t.get(key('b'));
    entity.year += 1;
    t.save({key: key('b'), data: entity});
  }
  await one.commit();
  await assert.rejects(two.commit(), {code: 10});
  assert.strictEqual((await db.get(key('b')))[0].year, 1982);

  await db.delete([key('a'), key('b')]);
  assert.deepStrictEqual(await names(db.createQuery('Book')), ['c']);
  console.log('all as expected');
}

main().catch(err => {
  console.error(err);
  process.exit(1);
});
