// Runs the public suite for HTTP caches against the cache at a URL: node run.mjs URL [ID...]
//
// Prints a JSON list of tests, each with its id, its kind, and what was wrong with the
// answers; null for a test that passes. Tests for the caches of browsers are left out.
// With ids it runs these tests alone, and shows their messages.

import { createRequire } from 'node:module'

const suite = new URL('node_modules/http-cache-tests/', import.meta.url)
const part = path => import(new URL(path, suite))
const fetch = createRequire(suite)('node-fetch')
const { runTests, getResults } = await part('client/runner.mjs')
const { default: groups } = await part('tests/index.mjs')
const { default: surrogate } = await part('tests/surrogate-control.mjs')

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
console.log(JSON.stringify(tests.map(test => {
  const result = results[test.id]
  // Of a failure: whether the setup went wrong or an answer, and how.
  const wrong = result === true ? null : result.join(': ')
  return { id: test.id, kind: test.kind ?? 'required', wrong }
})))
