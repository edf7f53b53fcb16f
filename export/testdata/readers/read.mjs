// Reads a file by a library that knows nothing of scattermap, and prints a JSON array of each record's columns, in a form in which
// numbers of any size can be compared: see canonical in readers_test.go.
//
// node read.mjs FOLDER-OF-NODE-MODULES READER FILE
// node read.mjs FOLDER-OF-NODE-MODULES QUERY FILE CONDITION prints the IDs of the records that meet a condition.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { readFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import { join } from 'node:path'

const [modules, reader, file, condition] = process.argv.slice(2)
const require = createRequire(pathToFileURL(join(modules, 'x.js')))

function number(n) {
  if (typeof n === 'bigint') return 'n:' + n
  if (Object.is(n, -0)) return 'n:-0'
  if (Number.isNaN(n)) return 'NaN'
  if (Number.isInteger(n)) return 'n:' + BigInt(n)
  const b = Buffer.alloc(8)
  b.writeDoubleBE(n)
  return 'f:' + b.toString('hex')
}

function signed(bytes) { // of two's complement
  const hex = Buffer.from(bytes).toString('hex')
  return BigInt.asIntN(8 * bytes.length, BigInt('0x' + hex))
}

const pairs = (all, name) => all.map(([k, v]) => [canonical(k, ''), canonical(v, '')]).sort((a, b) => (a[0] < b[0] ? -1 : 1))

function canonical(v, name) {
  const type = v?.constructor?.name ?? ''
  if (v === null || v === undefined) return null
  if (name.startsWith('UUID')) {
    if (typeof v === 'string') return 'b:' + v.replaceAll('-', '').toLowerCase()
    if (type === 'DuckDBUUIDValue') return 'b:' + v.toString().replaceAll('-', '')
  }
  if (name === 'Rat' && v instanceof Uint8Array) return number(signed(v))
  if (typeof v === 'boolean') return v
  if (typeof v === 'number' || typeof v === 'bigint') return number(v)
  if (typeof v === 'string') return 't:' + v
  if (v instanceof Uint8Array) return 'b:' + Buffer.from(v).toString('hex')
  if (Array.isArray(v)) return v.map(e => canonical(e, ''))
  switch (type) {
    case 'DuckDBTimestampValue': case 'DuckDBTimestampTZValue': case 'DuckDBTimeValue': case 'DuckDBTimeTZValue': return number(v.micros)
    case 'DuckDBTimestampMillisecondsValue': return number(v.millis)
    case 'DuckDBTimestampNanosecondsValue': case 'DuckDBTimestampTZNanosecondsValue': case 'DuckDBTimeNSValue': return number(v.nanos ?? v.nanoseconds)
    case 'DuckDBDateValue': return number(BigInt(v.days))
    case 'DuckDBBlobValue': return 'b:' + Buffer.from(v.bytes).toString('hex')
    case 'DuckDBListValue': return v.items.map(e => canonical(e, ''))
    case 'DuckDBDecimalValue': return number(v.value)
    case 'DuckDBMapValue': return pairs(v.entries.map(e => [e.key, e.value]))
    case 'DuckDBStructValue': v = v.entries
  }
  if (name.startsWith('Map')) return pairs(Object.entries(v))
  return columns(Object.entries(v))
}

const columns = entries => entries.map(([name, v]) => [name, canonical(v, name)])

async function duckdb(sql) {
  const { DuckDBInstance } = require('@duckdb/node-api')
  const c = await (await DuckDBInstance.create(':memory:')).connect()
  const r = await c.runAndReadAll(sql)
  const names = r.columnNames()
  return r.getRows().map(row => columns(row.map((v, i) => [names[i], v])))
}

async function queryHyparquet() {
  const { parquetQuery } = await import(pathToFileURL(join(modules, 'hyparquet/src/index.js')))
  const rows = await parquetQuery({ file: buffer(), filter: JSON.parse(condition) })
  return rows.map(r => Number(r.ID)).sort((a, b) => a - b)
}

async function queryDuckdb() {
  const rows = await duckdb(`select ID from read_parquet('${path}') where ${condition} order by ID`)
  return rows.map(r => Number(r[0][1].slice(2)))
}

function buffer() {
  const b = readFileSync(file)
  return b.buffer.slice(b.byteOffset, b.byteOffset + b.length)
}

async function hyparquet() {
  const { parquetReadObjects } = await import(pathToFileURL(join(modules, 'hyparquet/src/index.js')))
  const raw = v => v
  const rows = await parquetReadObjects({
    file: buffer(),
    utf8: false, // bytes stay bytes
    compressors: { GZIP: input => gunzipSync(input) },
    parsers: { timestampFromMilliseconds: raw, timestampFromMicroseconds: raw, timestampFromNanoseconds: raw, dateFromDays: raw,
      stringFromBytes: bytes => bytes && new TextDecoder().decode(bytes) },
  })
  return rows.map(r => columns(Object.entries(r)))
}

async function avsc() {
  const avro = require('avsc')
  const long = avro.types.LongType.__with({
    fromBuffer: b => b.readBigInt64LE(), toBuffer: n => { const b = Buffer.alloc(8); b.writeBigInt64LE(n); return b },
    fromJSON: BigInt, toJSON: Number, isValid: n => typeof n === 'bigint', compare: (a, b) => (a < b ? -1 : a > b ? 1 : 0),
  })
  const typeHook = s => ((s.type ?? s) === 'long' ? long : undefined) // of logical types, too
  const rows = []
  const decoder = avro.createFileDecoder(file, { parseHook: s => avro.Type.forSchema(s, { typeHook, wrapUnions: false }) })
  await new Promise((done, failed) => decoder.on('data', r => rows.push(columns(Object.entries(r)))).on('end', done).on('error', failed))
  return rows
}

const path = file.replaceAll("'", "''")
const rows = await ({
  hyparquet, avsc,
  'query-hyparquet': queryHyparquet,
  'query-duckdb': queryDuckdb,
  'duckdb-parquet': () => duckdb(`from read_parquet('${path}')`),
  'duckdb-csv': () => duckdb(`from read_csv('${path}', header=true, all_varchar=true, allow_quoted_nulls=false, delim=',', quote='"', escape='"')`),
}[reader])()
console.log(JSON.stringify(rows))
