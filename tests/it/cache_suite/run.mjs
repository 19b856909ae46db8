// Runs the public suite for HTTP caches against the cache at a URL: node run.mjs URL [ID...]
//
// Prints a JSON list of tests, each with its id, its kind, the suite's verdict, and what was
// wrong with the answers. Tests for the caches of browsers are left out. With ids it runs
// these tests alone, and shows their messages.

import { createRequire } from 'node:module'

const suite = new URL('node_modules/http-cache-tests/', import.meta.url)
const part = path => import(new URL(path, suite))
const fetch = createRequire(suite)('node-fetch')
const { runTests, getResults } = await part('client/runner.mjs')
const { determineTestResult } = await part('lib/display.mjs')
const { default: groups } = await part('tests/index.mjs')
const { default: surrogate } = await part('tests/surrogate-control.mjs')

// By the signs that the suite shows. Of a test in `setup` its preparation failed; of one in
// `dependency` a test failed on which it builds.
const VERDICTS = {
  '✅': 'pass',
  Y: 'pass',
  '⛔️': 'fail',
  '⚠️': 'fail',
  N: 'fail',
  '🔹': 'setup',
  '↻': 'setup',
  '⁉️': 'setup',
  '⚪️': 'dependency'
}

const [url, ...ids] = process.argv.slice(2)
const all = [...groups, surrogate]
const isWanted = test => ids.length === 0 || ids.includes(test.id)
const wanted = all.map(group => ({ ...group, tests: group.tests.filter(isWanted) }))
for (const group of wanted) {
  for (const test of group.tests) test.dump = ids.length > 0
}
await runTests(wanted, fetch, false, url)

const results = getResults()
const tests = all.flatMap(group => group.tests).filter(test => test.id in results)
console.log(JSON.stringify(tests.map(({ id, kind = 'required' }) => {
  const verdict = VERDICTS[determineTestResult(all, id, results, ids.length === 0)[2]]
  const wrong = results[id] === true ? null : results[id].join(': ')
  return { id, kind, verdict, wrong }
})))
